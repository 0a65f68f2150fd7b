#pragma once

#include <cstdint>
#include <string>

#include "runtime/backend/backend.h"

namespace fusor::cpu {

// Runs a library op of the IR on the calling thread's OpenMP team. Arguments as
// in codegen::Step: operands, results, workspace.
class LibraryExecutable : public runtime::Executable {
 public:
  // Prepares it to run: the expensive part of creation.
  virtual void Load() = 0;
  // Runs it, after Load. One launch at a time; fusor itself allocates nothing.
  virtual void Run(void* const* args) = 0;
  virtual const std::string& implementation() const = 0;
  virtual int64_t workspace_bytes() const = 0;
};

}  // namespace fusor::cpu
