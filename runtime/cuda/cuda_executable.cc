#include "runtime/cuda/cuda_executable.h"

#include <array>

#include "ir/support/error.h"

namespace fusor::cuda {
namespace {

// Kernel arguments: 8 bytes each of the 32,764 bytes that sm_70 and later take.
constexpr size_t kMaxArgs = 4095;

class KernelModule : public CudaExecutable {
 public:
  KernelModule(const Context& context, const codegen::CompiledKernel& kernel)
      : CudaExecutable(kernel.kernel.name, kernel.kernel.buffers.size()),
        context_(context) {
    FUSOR_ASSERT(num_args() <= kMaxArgs, "kernel {}: {} arguments, at most {}",
                 name(), num_args(), kMaxArgs);
    const Driver& driver = context.Enter();
    const CUresult loaded =
        driver.cuModuleLoadData(&module_, kernel.binary.c_str());
    driver.Check(loaded, fmt::format("kernel {} on {}: cuModuleLoadData",
                                     name(), context.name())
                             .c_str());
    for (const codegen::CudaLaunch& launch : CudaLaunches(kernel.kernel)) {
      Phase phase{nullptr, static_cast<unsigned>(launch.blocks),
                  static_cast<unsigned>(launch.threads),
                  static_cast<unsigned>(launch.dynamic_bytes)};
      const CUresult found = driver.cuModuleGetFunction(
          &phase.function, module_, launch.entry.c_str());
      if (found != CUDA_SUCCESS) Driver::Ignore(driver.cuModuleUnload(module_));
      driver.Check(found, fmt::format("kernel {}: cuModuleGetFunction {}",
                                      name(), launch.entry)
                              .c_str());
      if (launch.dynamic_bytes > 0) AllowSharedMemory(driver, phase);
      phases_.push_back(phase);
    }
  }
  ~KernelModule() override {
    Driver::Ignore(context_.EnterNoThrow().cuModuleUnload(module_));
  }
  KernelModule(const KernelModule&) = delete;
  KernelModule& operator=(const KernelModule&) = delete;

  void Enqueue(const Driver& driver, CUstream stream,
               void* const* args) const override {
    std::array<void*, kMaxArgs> params;  // uninitialised beyond num_args()
    for (size_t i = 0; i < num_args(); ++i) {
      params[i] = const_cast<void**>(&args[i]);
    }
    for (const Phase& phase : phases_) {
      driver.Check(driver.cuLaunchKernel(
                       phase.function, phase.blocks, 1, 1, phase.threads, 1, 1,
                       phase.dynamic_bytes, stream, params.data(), nullptr),
                   "cuLaunchKernel");
    }
  }

 private:
  struct Phase {
    CUfunction function;
    unsigned blocks;
    unsigned threads;
    unsigned dynamic_bytes;  // of shared memory
  };

  // A block may otherwise have 48 KB.
  void AllowSharedMemory(const Driver& driver, const Phase& phase) {
    const CUresult allowed = driver.cuFuncSetAttribute(
        phase.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        static_cast<int>(phase.dynamic_bytes));
    if (allowed != CUDA_SUCCESS) {
      Driver::Ignore(driver.cuModuleUnload(module_));
    }
    driver.Check(allowed,
                 fmt::format("kernel {}: cuFuncSetAttribute for {} bytes of "
                             "shared memory",
                             name(), phase.dynamic_bytes)
                     .c_str());
  }

  const Context& context_;
  CUmodule module_ = nullptr;
  std::vector<Phase> phases_;
};

class CallExecutable : public CudaExecutable {
 public:
  CallExecutable(const codegen::LibraryCall& call,
                 std::unique_ptr<DeviceCall> ready,
                 std::shared_ptr<runtime::Memory> workspace)
      : CudaExecutable(std::string(call.op_name()),
                       call.operands.size() + call.results.size() +
                           (call.workspace_bytes > 0 ? 1 : 0)),
        tensors_(call.operands.size() + call.results.size()),
        ready_(std::move(ready)),
        workspace_(std::move(workspace)) {}
  void Enqueue(const Driver&, CUstream stream,
               void* const* args) const override {
    if (workspace_ == nullptr) return ready_->Enqueue(stream, args);
    std::vector<void*> all(args, args + tensors_);
    all.push_back(workspace_->data());
    ready_->Enqueue(stream, all.data());
  }

 private:
  size_t tensors_;
  std::unique_ptr<DeviceCall> ready_;
  std::shared_ptr<runtime::Memory> workspace_;
};

class GraphExecutable : public CudaExecutable {
 public:
  GraphExecutable(const Context& context, CUgraph graph, CUstream stream)
      : CudaExecutable("step", 0), context_(context) {
    const Driver& driver = context.Enter();
    const CUresult made = driver.cuGraphInstantiate(&graph_, graph, 0);
    Driver::Ignore(driver.cuGraphDestroy(graph));
    driver.Check(made, "cuGraphInstantiate");
    // Otherwise the first launch would upload it, and report any rejection.
    const CUresult uploaded = driver.cuGraphUpload(graph_, stream);
    if (uploaded != CUDA_SUCCESS) {
      Driver::Ignore(driver.cuGraphExecDestroy(graph_));
    }
    driver.Check(uploaded, "cuGraphUpload");
  }
  ~GraphExecutable() override {
    Driver::Ignore(context_.EnterNoThrow().cuGraphExecDestroy(graph_));
  }
  GraphExecutable(const GraphExecutable&) = delete;
  GraphExecutable& operator=(const GraphExecutable&) = delete;

  bool is_graph() const override { return true; }
  void Enqueue(const Driver& driver, CUstream stream,
               void* const*) const override {
    driver.Check(driver.cuGraphLaunch(graph_, stream), "cuGraphLaunch");
  }

 private:
  const Context& context_;
  CUgraphExec graph_ = nullptr;
};

}  // namespace

std::unique_ptr<CudaExecutable> LoadKernelModule(
    const Context& context, const codegen::CompiledKernel& kernel) {
  return std::make_unique<KernelModule>(context, kernel);
}

std::unique_ptr<CudaExecutable> WrapCall(
    const codegen::LibraryCall& call, std::unique_ptr<DeviceCall> ready,
    std::shared_ptr<runtime::Memory> workspace) {
  return std::make_unique<CallExecutable>(call, std::move(ready),
                                          std::move(workspace));
}

std::unique_ptr<CudaExecutable> InstantiateGraph(const Context& context,
                                                 CUgraph graph,
                                                 CUstream stream) {
  return std::make_unique<GraphExecutable>(context, graph, stream);
}

}  // namespace fusor::cuda
