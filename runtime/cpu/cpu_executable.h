#pragma once

#include <memory>
#include <string>

#include "runtime/backend/backend.h"

namespace fusor::cpu {

// A kernel or library call that a CPU stream can launch.
class CpuExecutable : public runtime::Executable {
 public:
  CpuExecutable(std::string name, size_t num_args)
      : name_(std::move(name)), num_args_(num_args) {}
  explicit CpuExecutable(const codegen::LibraryCall& call)
      : CpuExecutable(std::string(call.op_name()),
                      call.operands.size() + call.results.size() +
                          (call.workspace_bytes > 0 ? 1 : 0)) {}

  // Runs to completion on the calling thread and its OpenMP team, without
  // allocation. Two threads must not run it at once.
  virtual void Run(void* const* args) const = 0;

  const std::string& name() const { return name_; }
  size_t num_args() const { return num_args_; }

 private:
  std::string name_;
  size_t num_args_;
};

// Loads a generated kernel for a team of `threads`. Small kernels run on the
// calling thread alone. The assignment of tasks to threads depends only on the
// kernel and `threads`.
std::unique_ptr<CpuExecutable> MakeKernelExecutable(
    const codegen::CompiledKernel& kernel, int threads);

}  // namespace fusor::cpu
