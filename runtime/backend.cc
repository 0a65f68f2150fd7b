#include "runtime/backend.h"

#include "ir/support/error.h"
#include "runtime/build_id.h"

namespace fusor::runtime {

Executable::~Executable() = default;
Event::~Event() = default;
Stream::~Stream() = default;
std::unique_ptr<Executable> Stream::Capture(const std::function<void()>&) {
  return nullptr;
}
Memory::~Memory() = default;
Device::~Device() = default;
Backend::~Backend() = default;

std::unique_ptr<Communicator> Backend::Connect(TcpStore&,
                                               const CommunicatorOptions&) {
  FUSOR_CHECK(false, kDevice, "backend {}: knows one rank alone", name());
}

const char* BuildId() { return kBuildId; }

}  // namespace fusor::runtime
