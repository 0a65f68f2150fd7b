#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ir/graph.h"

namespace fusor::ir {

// The binary protobuf form (ir/io/graph.proto). Equal graphs give equal bytes.
std::string Serialize(const Graph& graph);

// Reads what Serialize wrote: an equal graph, bit for bit, names included, and
// verified. Throws kGraph with one line that begins with `source` on anything
// else; never crashes, whatever the bytes.
std::unique_ptr<Graph> Deserialize(std::string_view bytes,
                                   std::string_view source = "graph file");

}  // namespace fusor::ir
