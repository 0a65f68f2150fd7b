#include "runtime/backend/backend.h"

#include <new>

#include "ir/support/error.h"
#include "runtime/backend/build_id.h"

namespace fusor::runtime {
namespace {

class PageableMemory : public Memory {
 public:
  explicit PageableMemory(size_t bytes)
      : data_(::operator new(bytes, kAlignment, std::nothrow)), bytes_(bytes) {
    FUSOR_CHECK(data_ != nullptr, kOutOfMemory, "no room for {} bytes", bytes);
  }
  ~PageableMemory() override { ::operator delete(data_, kAlignment); }
  PageableMemory(const PageableMemory&) = delete;
  PageableMemory& operator=(const PageableMemory&) = delete;
  void* data() override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  static constexpr std::align_val_t kAlignment{64};

  void* data_;
  size_t bytes_;
};

}  // namespace

Executable::~Executable() = default;
Event::~Event() = default;
Stream::~Stream() = default;
std::unique_ptr<Executable> Stream::Capture(const std::function<void()>&) {
  return nullptr;
}
void Stream::CopyToDevice(void* device, const void* host, size_t bytes,
                          Event& copied) {
  CopyToDevice(device, host, bytes);
  Record(copied);
}
Memory::~Memory() = default;
Device::~Device() = default;
std::unique_ptr<Memory> Device::AllocateHost(size_t bytes) {
  return std::make_unique<PageableMemory>(bytes);
}
Backend::~Backend() = default;

std::unique_ptr<Communicator> Backend::Connect(TcpStore&,
                                               const CommunicatorOptions&) {
  FUSOR_CHECK(false, kDevice, "backend {}: supports only one rank", name());
}

const char* BuildId() { return kBuildId; }

}  // namespace fusor::runtime
