#pragma once

#include <cuda.h>

#include <memory>
#include <string>
#include <vector>

#include "codegen/cuda/cuda_printer.h"
#include "codegen/plan/plan.h"
#include "runtime/backend/backend.h"
#include "runtime/cuda/context.h"
#include "runtime/cuda/library_calls.h"

namespace fusor::cuda {

// A kernel, a library call or a graph that a CudaStream can launch. The context
// must outlive it.
class CudaExecutable : public runtime::Executable {
 public:
  CudaExecutable(std::string name, size_t num_args)
      : name_(std::move(name)), num_args_(num_args) {}
  const std::string& name() const { return name_; }
  size_t num_args() const { return num_args_; }
  // Returns whether this is a captured graph. The caller may enqueue the
  // launches one by one instead.
  virtual bool is_graph() const { return false; }
  // Enqueues the work. REQUIRES: the context is current.
  virtual void Enqueue(const Driver& driver, CUstream stream,
                       void* const* args) const = 0;

 private:
  std::string name_;
  size_t num_args_;
};

// Loads a kernel's cubin. Throws kDevice if the driver rejects it.
std::unique_ptr<CudaExecutable> LoadKernelModule(
    const Context& context, const codegen::CompiledKernel& kernel);

// `workspace`: if not null, the call's last argument in place of the planned
// workspace, if any.
std::unique_ptr<CudaExecutable> WrapCall(
    const codegen::LibraryCall& call, std::unique_ptr<DeviceCall> ready,
    std::shared_ptr<runtime::Memory> workspace);

// Instantiates and destroys `graph`, and enqueues its upload on the stream.
std::unique_ptr<CudaExecutable> InstantiateGraph(const Context& context,
                                                 CUgraph graph,
                                                 CUstream stream);

}  // namespace fusor::cuda
