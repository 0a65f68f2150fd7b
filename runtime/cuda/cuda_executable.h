#pragma once

#include <cuda.h>

#include <cstdint>
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
  enum class Kind : uint8_t {
    kKernel,
    kGraph,  // captured; its launches may be enqueued one by one instead
    kOther,
  };

  CudaExecutable(Kind kind, std::string name, size_t num_args)
      : kind_(kind), name_(std::move(name)), num_args_(num_args) {}
  Kind kind() const { return kind_; }
  const std::string& name() const { return name_; }
  size_t num_args() const { return num_args_; }
  // Enqueues the work. `after_kernel`: the work in front of it on the stream is
  // a kernel (kKernel). REQUIRES: the context is current.
  virtual void Enqueue(const Driver& driver, CUstream stream, void* const* args,
                       bool after_kernel) const = 0;

 private:
  Kind kind_;
  std::string name_;
  size_t num_args_;
};

// Loads a kernel's cubin. Throws kDevice if the driver rejects it.
// `dependent_launch`: a launch behind another launch of a kernel may start
// before that one has ended (BackendOptions::dependent_launch).
std::unique_ptr<CudaExecutable> LoadKernelModule(
    const Context& context, const codegen::CompiledKernel& kernel,
    bool dependent_launch);

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
