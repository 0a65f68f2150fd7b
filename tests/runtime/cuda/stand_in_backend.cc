#include "tests/runtime/cuda/stand_in_backend.h"

#include <deque>

#include "ir/support/error.h"
#include "runtime/cuda/cuda_device.h"
#include "tests/testing/library_call.h"

namespace fusor::test {
namespace {

class HostCall : public cuda::DeviceCall {
 public:
  HostCall(StandIn& driver, const codegen::LibraryCall& call)
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
    FUSOR_ASSERT(result == CUDA_SUCCESS, "{}", driver_.problem());
  }

 private:
  struct Job {
    const codegen::LibraryCall& call;
    std::vector<void*> args;
  };
  StandIn& driver_;
  const codegen::LibraryCall call_;
  mutable std::deque<Job> jobs_;
};

}  // namespace

StandInBackend::StandInBackend(const StandInOptions& options)
    : driver_(LoadStandIn()) {
  driver_.Reset(options);
}

std::unique_ptr<runtime::Device> StandInBackend::OpenDevice(
    int ordinal, const runtime::BackendOptions& options) {
  return cuda::OpenCudaDevice(
      ordinal, options, [this](const codegen::LibraryCall& call) {
        return std::make_unique<HostCall>(driver_, call);
      });
}

}  // namespace fusor::test
