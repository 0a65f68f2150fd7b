#pragma once

#include <memory>
#include <string>

#include "runtime/backend/backend.h"

namespace fusor::cpu {

// What a CPU stream can launch.
class CpuExecutable : public runtime::Executable {
 public:
  CpuExecutable(std::string name, size_t num_args)
      : name_(std::move(name)), num_args_(num_args) {}

  // Runs to completion on the calling thread and its OpenMP team; no
  // allocation. Not to be run by two threads at once.
  virtual void Run(void* const* args) const = 0;

  const std::string& name() const { return name_; }
  size_t num_args() const { return num_args_; }

 private:
  std::string name_;
  size_t num_args_;
};

// A generated kernel on a team of `threads`, alone on the calling thread when
// it is small. Which thread runs which tasks depends on nothing else.
std::unique_ptr<CpuExecutable> MakeKernelExecutable(
    const codegen::CompiledKernel& kernel, int threads);

// A library call. Throws kDevice when it needs a larger workspace here than
// where it was compiled.
std::unique_ptr<CpuExecutable> MakeCallExecutable(
    const codegen::LibraryCall& call);

}  // namespace fusor::cpu
