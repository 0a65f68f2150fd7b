// The CPU plug-in's entry.

#include <oneapi/dnnl/dnnl.h>

#include <fstream>

#include "codegen/cpu/cpu_compiler.h"
#include "codegen/cpu/onednn_plan.h"
#include "ir/support/error.h"
#include "ir/support/host_memory.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/build_id.h"
#include "runtime/cpu/cpu_device.h"
#include "runtime/cpu/gloo/gloo_exchange.h"

namespace fusor::cpu {
namespace {

// More than any machine has cores. The OpenMP runtime ends the process if it
// cannot start a thread.
constexpr int kMaxThreads = 1024;

int Threads(const runtime::BackendOptions& options) {
  FUSOR_CHECK(options.threads >= 0 && options.threads <= kMaxThreads, kUsage,
              "CPU backend: {} threads: expected 0 (all cores) to {}",
              options.threads, kMaxThreads);
  return options.threads > 0 ? options.threads : ir::DefaultCpuTarget().threads;
}

std::string OneDnnLine() {
  const dnnl_version_t* version = dnnl_version();
  const bool winograd =
      version->major < 3 || (version->major == 3 && version->minor < 2);
  return OneDnnVersion() +
         (winograd ? ""
                   : ": without Winograd convolutions in fp32, which end with "
                     "3.1; "
                     "expect slower training");
}

// Reads the active mode, which is in brackets: "always [madvise] never".
std::string HugePageLine() {
  std::ifstream in("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  std::getline(in, line);
  const size_t open = line.find('[');
  const size_t close = line.find(']');
  if (open == std::string::npos || close == std::string::npos) {
    return "huge pages: unknown";
  }
  const std::string mode = line.substr(open + 1, close - open - 1);
  return mode == "never" ? "huge pages: off; expect slower training"
                         : "huge pages: " + mode;
}

class CpuBackend : public runtime::Backend {
 public:
  std::string name() const override { return "cpu"; }
  int device_count() const override { return 1; }

  std::vector<std::string> Diagnose() const override {
    const ir::Target target = ir::DefaultCpuTarget();
    return {fmt::format("{}, {} threads, target {}", DescribeCpu(),
                        target.threads, target.name),
            LlvmCompiler(target.name).facts().Text(), OneDnnLine(),
            HugePageLine(),
            fmt::format("memory: {} MiB free", runtime::FreeHostBytes() >> 20)};
  }

  std::unique_ptr<runtime::Device> OpenDevice(
      int ordinal, const runtime::BackendOptions& options) override {
    FUSOR_CHECK(ordinal == 0, kDevice, "CPU device {}: there is only 0",
                ordinal);
    return OpenCpuDevice(Threads(options));
  }

  std::unique_ptr<codegen::TargetCompiler> CreateCompiler(
      const std::string& target,
      const runtime::BackendOptions& options) override {
    ir::Target description =
        target.empty() ? ir::DefaultCpuTarget() : ir::FindTarget(target);
    FUSOR_CHECK(!description.simt, kUsage,
                "CPU backend: target {} is not a CPU", target);
    return std::make_unique<CpuCompiler>(
        WithThreads(std::move(description), Threads(options)));
  }

  std::unique_ptr<runtime::Communicator> Connect(
      runtime::TcpStore& store,
      const runtime::CommunicatorOptions& options) override {
    return runtime::RunInThread(ConnectGloo(store, options));
  }
};

std::unique_ptr<runtime::Backend> Create() {
  FUSOR_CHECK(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"),
              kDevice, "CPU backend: {}: expected AVX2 and FMA", DescribeCpu());
  return std::make_unique<CpuBackend>();
}

}  // namespace
}  // namespace fusor::cpu

extern "C" fusor::runtime::BackendEntry FusorBackendEntry() noexcept {
  return {fusor::runtime::kBackendAbiVersion, fusor::runtime::kBuildId,
          fusor::cpu::Create};
}
