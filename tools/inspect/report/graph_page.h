#pragma once

#include <string>

#include "ir/graph.h"

namespace fusor::codegen {

// One self-contained HTML page that draws the graph: a row a model location, a
// column a phase (forward, backward, update), a box a node; rows open into the
// graph of their nodes, fusions into their bodies. Needs no network.
// Deterministic: equal graphs and titles give equal bytes.
std::string GraphPage(const ir::Graph& graph, const std::string& title);

}  // namespace fusor::codegen
