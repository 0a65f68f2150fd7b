#pragma once

#include <string>
#include <vector>

#include "runtime/backend/backend.h"

namespace fusor::runtime {

// Returns FUSOR_BACKEND_DIR, otherwise fusor/ next to libfusor.
std::string BackendFolder();

// Returns the sorted names of all plug-ins in BackendFolder(), i.e. of files
// fusor_<name>.so, usable or not. Empty if the folder does not exist.
std::vector<std::string> AvailableBackends();

// Returns the named plug-in. It is loaded at the first call and kept for the
// rest of the process. Throws kDevice, naming the file, if it is missing,
// cannot be opened, has no entry, or has another ABI version or build. Also
// throws what the plug-in throws on creation. Thread-safe.
Backend& LoadBackend(const std::string& name);

}  // namespace fusor::runtime
