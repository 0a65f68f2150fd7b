#pragma once

#include <memory>
#include <string>

#include "ir/graph.h"

namespace fusor::ir {

// Reads a module, IR text or protobuf bytes, from a file, or from stdin for
// "-". Throws kUsage if it is unreadable, kGraph with the position if
// malformed.
std::unique_ptr<Graph> ReadModule(const std::string& path);

}  // namespace fusor::ir
