#pragma once

#include <memory>

#include "runtime/backend/backend.h"
#include "runtime/null/null_log.h"

namespace fusor::null {

// A device that computes nothing. Memory is the host's and copies do happen, so
// that what was written can be read back; launches only write to `log`, which
// must outlive the device, and check that their arguments are its memory.
std::unique_ptr<runtime::Device> OpenNullDevice(NullLog& log);

}  // namespace fusor::null
