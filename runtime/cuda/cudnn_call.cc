// Runs cuDNN's execution plans.

#include <fmt/format.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "codegen/cuda/conv_planner.h"
#include "codegen/cuda/cudnn_descriptor.h"
#include "codegen/cuda/planned_call.h"
#include "ir/library_fusion.h"
#include "ir/support/error.h"
#include "runtime/cuda/library_calls.h"

namespace fusor::cuda {
namespace {

using codegen::LibraryCall;

void Check(cudnnStatus_t status, const char* call) {
  CheckCudnn(status, call, ErrorCode::kDevice);
}

// A handle for the device of the context that is current at construction.
class Handle {
 public:
  Handle() {
    const Cudnn& cudnn = LoadedCudnn();
    const int cuda = cudnn.library.cuda();
    const std::string too_old = DriverTooOld(cuda);
    FUSOR_CHECK(too_old.empty(), kDevice, "{} for CUDA {}: {}", CudnnVersion(),
                cuda, too_old);
    Check(cudnn.create_handle(&handle_), "cudnnCreate");
  }
  ~Handle() { LoadedCudnn().destroy_handle(handle_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  cudnnHandle_t get() const { return handle_; }

 private:
  cudnnHandle_t handle_ = nullptr;
};

// Returns false if the plan's graph has no tensor for the argument, because the
// result is stored in place of that operand.
bool IsBound(const LibraryCall& call, size_t argument) {
  return call.body == nullptr || ir::AccumulatedInput(*call.body) != argument;
}

void* Aligned(void* workspace) {
  constexpr uintptr_t kUnit = kConvWorkspaceAlignment;
  const auto address = reinterpret_cast<uintptr_t>(workspace);
  return reinterpret_cast<void*>((address + kUnit - 1) / kUnit * kUnit);
}

class CudnnCall : public DeviceCall {
 public:
  CudnnCall(const LibraryCall& call, std::shared_ptr<const Handle> handle,
            CudnnDescriptor plan)
      : handle_(std::move(handle)),
        plan_(std::move(plan)),
        workspace_bytes_(WorkspaceOf(plan_)),
        planned_bytes_(call.workspace_bytes),
        arguments_(call.operands.size() + call.results.size()) {
    for (size_t i = 0; i < arguments_; ++i) {
      if (IsBound(call, i)) ids_.push_back(static_cast<int64_t>(i) + 1);
    }
  }

  int64_t unplanned_workspace_bytes() const override {
    return workspace_bytes_ > planned_bytes_ ? workspace_bytes_ : 0;
  }

  void Enqueue(CUstream stream, void* const* args) const override {
    std::vector<void*> pointers;
    pointers.reserve(ids_.size());
    for (const int64_t id : ids_) pointers.push_back(args[id - 1]);
    CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.Set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids_);
    pack.Set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, pointers);
    pack.Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
             workspace_bytes_ > 0 ? Aligned(args[arguments_]) : nullptr);
    pack.Finalize();
    const Cudnn& cudnn = LoadedCudnn();
    Check(cudnn.set_stream(handle_->get(), stream), "cudnnSetStream");
    Check(cudnn.execute(handle_->get(), plan_.get(), pack.get()),
          "cudnnBackendExecute");
  }

 private:
  std::shared_ptr<const Handle> handle_;
  CudnnDescriptor plan_;
  int64_t workspace_bytes_;  // padded
  int64_t planned_bytes_;
  size_t arguments_;  // operands and results
  std::vector<int64_t> ids_;
};

}  // namespace

MakeDeviceCall CudnnCalls(codegen::WarningHandler warning) {
  return [handle = std::shared_ptr<const Handle>(),
          warning = std::move(warning)](
             const LibraryCall& call) mutable -> std::unique_ptr<DeviceCall> {
    const std::optional<size_t> version = CudnnVersionOf(call);
    if (!version.has_value()) return nullptr;
    const Cudnn& cudnn = LoadedCudnn();
    FUSOR_CHECK(cudnn.usable, kDevice, "{}: no cuDNN: {}", call.op_name(),
                cudnn.problem);
    FUSOR_CHECK(*version == cudnn.version(), kDevice,
                "{}: planned by cuDNN {}, found {}", call.op_name(), *version,
                cudnn.version());
    if (handle == nullptr) handle = std::make_shared<const Handle>();
    try {
      LoadedPlan loaded = LoadPlan(call, handle->get());
      if (!loaded.mismatch.empty() && warning) {
        // The reason depends on the device, so it also holds for later plans.
        std::exchange(warning, nullptr)(fmt::format(
            "{} by {}: its plan is one for another device or driver ({}); such "
            "plans are built anew for this one, with the same engines and "
            "knobs",
            call.op_name(), call.implementation, loaded.mismatch));
      }
      return std::make_unique<CudnnCall>(call, handle, std::move(loaded.plan));
    } catch (const Error& e) {
      throw Error(ErrorCode::kDevice,
                  fmt::format("{} by {}: {}", call.op_name(),
                              call.implementation, e.what()));
    }
  };
}

}  // namespace fusor::cuda
