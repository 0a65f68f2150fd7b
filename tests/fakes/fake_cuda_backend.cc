#include "tests/fakes/fake_cuda_backend.h"

#include <deque>

#include "codegen/cuda/matmul_problem.h"
#include "codegen/cuda/planned_call.h"
#include "ir/support/error.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/library_calls.h"
#include "tests/fakes/fake_cublaslt.h"
#include "tests/testing/library_call.h"

namespace fusor::test {
namespace {

class FakeCudaCompiler : public ChannelsLastCompiler {
 public:
  using ChannelsLastCompiler::ChannelsLastCompiler;
  void PrepareCall(codegen::LibraryCall& call) const override {
    if (cuda::PrepareMatmul(call) || cuda::PrepareMemoryCopy(call)) return;
    ChannelsLastCompiler::PrepareCall(call);
  }
};

class HostCall : public cuda::DeviceCall {
 public:
  HostCall(FakeDriver& driver, const codegen::LibraryCall& call)
      : driver_(driver), call_(call) {}
  void Enqueue(CUstream stream, void* const* args) const override {
    const size_t workspaces = call_.workspace_bytes > 0 ? 1 : 0;
    jobs_.push_back({call_,
                     {args, args + call_.operands.size() +
                                call_.results.size() + workspaces}});
    const auto run = [](void* data) {
      const Job& job = *static_cast<Job*>(data);
      RunLibraryCall(job.call, job.args.data());
    };
    const CUresult result = driver_.LaunchHost(stream, run, &jobs_.back());
    FUSOR_CHECK(result == CUDA_SUCCESS, kDevice, "fake: {}: error {}: {}",
                call_.op_name(), static_cast<int>(result), driver_.problem());
  }

 private:
  struct Job {
    const codegen::LibraryCall& call;
    std::vector<void*> args;
  };
  FakeDriver& driver_;
  const codegen::LibraryCall call_;
  mutable std::deque<Job> jobs_;
};

}  // namespace

std::unique_ptr<codegen::TargetCompiler> FakePlanner() {
  return std::make_unique<FakeCudaCompiler>("nvidia-h200");
}

FakeCudaBackend::FakeCudaBackend(const FakeBackendOptions& options)
    : driver_(LoadFakeDriver()) {
  LoadFakeCublaslt();
  driver_.Reset(options);
}

std::unique_ptr<runtime::Device> FakeCudaBackend::OpenDevice(
    int ordinal, const runtime::BackendOptions& options) {
  return cuda::OpenCudaDevice(
      ordinal, options,
      [this, products = cuda::CublasltCalls()](const codegen::LibraryCall& call)
          -> std::unique_ptr<cuda::DeviceCall> {
        if (auto product = products(call)) return product;
        if (auto copy = cuda::MakeMemoryCopy(call)) return copy;
        return std::make_unique<HostCall>(driver_, call);
      });
}

}  // namespace fusor::test
