// The CUDA plug-in's entry.

#include <optional>

#include "codegen/cuda/cubin.h"
#include "codegen/cuda/cuda_compiler.h"
#include "ir/support/error.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/build_id.h"
#include "runtime/cuda/context.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/diagnose.h"
#include "runtime/cuda/library_calls.h"
#ifdef FUSOR_NCCL
#include "runtime/cuda/nccl/nccl_communicator.h"
#endif
#include "codegen/cuda/nvrtc.h"

namespace fusor::cuda {
namespace {

constexpr char kDefaultTarget[] = "nvidia-h200";

class CudaBackend : public runtime::Backend {
 public:
  std::string name() const override { return "cuda"; }
  int device_count() const override { return CountDevices(); }

  std::vector<std::string> Diagnose() const override {
    std::vector<std::string> lines{DescribeNvrtc(), DescribeDisassembler()};
    for (std::string& line : DescribeLibraries()) {
      lines.push_back(std::move(line));
    }
    lines.emplace_back(
        "compiles kernels for a GPU (fusor compile --target nvidia-h200)");
    return lines;
  }

  std::unique_ptr<runtime::Device> OpenDevice(
      int ordinal, const runtime::BackendOptions& options) override {
    return OpenCudaDevice(ordinal, options, CudaLibraryCalls(options.warning));
  }

  std::unique_ptr<codegen::TargetCompiler> CreateCompiler(
      const std::string& target,
      const runtime::BackendOptions& options) override {
    if (target.empty()) {
      if (std::optional<ir::Target> own = TargetOfDevice()) {
        const int device = DeviceOfRank();
        const Context context(device);
        context.Enter();
        auto compiler = std::make_unique<CudaCompiler>(std::move(*own), device,
                                                       options.warning);
        compiler->CheckDriver();
        return compiler;
      }
    }
    ir::Target description =
        ir::FindTarget(target.empty() ? kDefaultTarget : target);
    FUSOR_CHECK(description.simt && description.compute_capability > 0, kUsage,
                "CUDA backend: target {} is not an NVIDIA GPU",
                description.name);
    return std::make_unique<CudaCompiler>(std::move(description), std::nullopt,
                                          options.warning);
  }

#ifdef FUSOR_NCCL
  std::unique_ptr<runtime::Communicator> Connect(
      runtime::TcpStore& store,
      const runtime::CommunicatorOptions& options) override {
    return ConnectNccl(
        store, options,
        options.deterministic ? CreateCompiler("", {}) : nullptr);
  }
#endif
};

std::unique_ptr<runtime::Backend> Create() {
  return std::make_unique<CudaBackend>();
}

}  // namespace
}  // namespace fusor::cuda

extern "C" fusor::runtime::BackendEntry FusorBackendEntry() noexcept {
  return {fusor::runtime::kBackendAbiVersion, fusor::runtime::kBuildId,
          fusor::cuda::Create};
}
