#pragma once

#include <memory>

#include "runtime/backend/backend.h"
#include "runtime/null/null_log.h"

namespace fusor::null {

// Opens a device that computes nothing. Its memory is host memory and copies
// are performed, so that written data can be read back. Launches only check
// that their arguments are its memory and log to `log`, which must outlive it.
std::unique_ptr<runtime::Device> OpenNullDevice(NullLog& log);

}  // namespace fusor::null
