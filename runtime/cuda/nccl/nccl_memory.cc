#include <algorithm>

#include "ir/support/error.h"
#include "runtime/cuda/nccl/nccl_connection.h"

namespace fusor::cuda {
namespace {

class NcclMemory : public runtime::Memory {
 public:
  NcclMemory(const NcclConnection& connection, const Context& context,
             size_t bytes)
      : connection_(connection), context_(context), bytes_(bytes) {
    const Driver& driver = context.Enter();
    const size_t free = context.free_bytes();
    const size_t asked = std::max<size_t>(bytes, 1);
    const ncclResult_t made = connection.nccl().ncclMemAlloc(&data_, asked);
    FUSOR_CHECK(made == ncclSuccess || asked <= free, kOutOfMemory,
                "{}: {} bytes asked for, {} free", context.name(), bytes, free);
    connection.Check(made, "ncclMemAlloc");
    try {
      // Synchronises below, so that work on any stream finds it zeroed.
      driver.Check(driver.cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(data_),
                                          0, asked, nullptr),
                   "cuMemsetD8Async");
      driver.Check(driver.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
      const auto hold = connection.Hold();
      connection.Settle(connection.nccl().ncclCommRegister(
                            connection.comm(), data_, asked, &registration_),
                        "ncclCommRegister");
    } catch (...) {
      connection.nccl().ncclMemFree(data_);
      throw;
    }
  }
  // Leaks memory that NCCL does not release.
  ~NcclMemory() override {
    const Driver& driver = context_.EnterNoThrow();
    // Unlike cuMemFree, ncclMemFree does not wait for work that uses the
    // memory.
    if (!connection_.failed()) Driver::Ignore(driver.cuCtxSynchronize());
    if (!Deregister() && !connection_.AwaitAbort()) return;
    connection_.nccl().ncclMemFree(data_);
  }
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;

  void* data() override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  // Returns false if the connection has failed.
  bool Deregister() noexcept {
    try {
      const auto hold = connection_.Hold();
      connection_.nccl().ncclCommDeregister(connection_.comm(), registration_);
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  const NcclConnection& connection_;
  const Context& context_;
  const size_t bytes_;
  void* data_ = nullptr;
  void* registration_ = nullptr;
};

}  // namespace

std::unique_ptr<runtime::Memory> AllocateRegistered(
    const NcclConnection& connection, const Context& context, size_t bytes) {
  return std::make_unique<NcclMemory>(connection, context, bytes);
}

}  // namespace fusor::cuda
