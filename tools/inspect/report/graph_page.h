#pragma once

#include <string>

#include "ir/graph.h"

namespace fusor::codegen {

// Returns one self-contained HTML page that draws the graph: a row per model
// location, a column per phase (forward, backward, update), a box per node.
// Rows expand to the graph of their nodes, fusions to their bodies. Works
// without a network. Equal graphs and titles give equal bytes.
std::string GraphPage(const ir::Graph& graph, const std::string& title);

}  // namespace fusor::codegen
