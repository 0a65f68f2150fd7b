// Copies by the driver.

#include "codegen/cuda/planned_call.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/library_calls.h"

namespace fusor::cuda {
namespace {

using codegen::LibraryCall;

class MemoryCopy : public DeviceCall {
 public:
  explicit MemoryCopy(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {}
  void Enqueue(CUstream stream, void* const* args) const override {
    const Driver& driver = LoadDriver();
    const auto address = [](void* pointer) {
      return reinterpret_cast<CUdeviceptr>(pointer);
    };
    driver.Check(driver.cuMemcpyDtoDAsync(address(args[1]), address(args[0]),
                                          bytes_, stream),
                 "cuMemcpyDtoDAsync");
  }

 private:
  size_t bytes_;
};

}  // namespace

std::unique_ptr<DeviceCall> MakeMemoryCopy(const LibraryCall& call) {
  if (!IsMemoryCopy(call)) return nullptr;
  return std::make_unique<MemoryCopy>(call.results[0].num_bytes());
}

}  // namespace fusor::cuda
