#pragma once

#include <cstdint>
#include <string>

#include "runtime/backend/backend.h"

namespace fusor::cpu {

// A library op of the IR, ready to run on the calling thread's OpenMP team.
// Arguments as codegen::Step describes: operands, results, workspace.
class LibraryExecutable : public runtime::Executable {
 public:
  // Makes it ready to run: the expensive part of its creation.
  virtual void Load() = 0;
  // One launch at a time, after Load. No allocation of ours.
  virtual void Run(void* const* args) = 0;
  virtual const std::string& implementation() const = 0;
  virtual int64_t workspace_bytes() const = 0;
};

}  // namespace fusor::cpu
