#include "runtime/backend.h"

#include "runtime/build_id.h"

namespace fusor::runtime {

Executable::~Executable() = default;
Event::~Event() = default;
Stream::~Stream() = default;
Memory::~Memory() = default;
Device::~Device() = default;
Backend::~Backend() = default;

const char* BuildId() { return kBuildId; }

}  // namespace fusor::runtime
