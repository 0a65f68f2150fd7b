#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ir/graph.h"

namespace fusor::ir {

// Returns the protobuf form (ir/io/graph.proto). Equal graphs give equal bytes.
std::string Serialize(const Graph& graph);

// Reads the output of Serialize and verifies it. The graph is equal bit for
// bit, including names. Throws kGraph with one line that starts with `source`
// on any other bytes; never crashes.
std::unique_ptr<Graph> Deserialize(std::string_view bytes,
                                   std::string_view source = "graph file");

}  // namespace fusor::ir
