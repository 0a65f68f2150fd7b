#pragma once

#include <string>
#include <vector>

#include "runtime/backend/backend.h"

namespace fusor::runtime {

// Folder of the plug-ins: FUSOR_BACKEND_DIR, else backends/ beside libfusor.
std::string BackendFolder();

// Names of the plug-ins in BackendFolder(), sorted: those for which a file
// fusor_<name>.so is there, usable or not. Empty when there is no folder.
std::vector<std::string> AvailableBackends();

// The plug-in of that name, loaded at the first call and kept for the rest of
// the process. Throws kDevice, naming the file, when it is missing, cannot be
// opened, has no entry, or was built for another abi or from another build;
// what the plug-in itself throws on creation passes through. Thread-safe.
Backend& LoadBackend(const std::string& name);

}  // namespace fusor::runtime
