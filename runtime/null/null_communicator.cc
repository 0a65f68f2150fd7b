#include <fmt/core.h>

#include "runtime/null/null_device.h"

namespace fusor::null {

int64_t NullCommunicator::Start(const runtime::Collective& collective,
                                runtime::Stream&) {
  log_.Add(fmt::format("collective {} starts {} {} {}", started_,
                       runtime::CollectiveName(collective.kind),
                       ir::DTypeName(collective.dtype), collective.elements));
  return started_++;
}

void NullCommunicator::Wait(int64_t number, runtime::Stream&) {
  log_.Add(fmt::format("collective {} is waited for", number));
}

void NullCommunicator::Abort(const std::string& why) noexcept {
  try {
    log_.Add("collectives end: " + why);
  } catch (const std::exception&) {
    // Out of memory: no line.
  }
}

}  // namespace fusor::null
