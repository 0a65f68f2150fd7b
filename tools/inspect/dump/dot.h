#pragma once

#include <string>

#include "ir/graph.h"

namespace fusor::ir {

// Returns the graph in Graphviz DOT, for `dot -Tsvg`. Nodes show op and
// location, edges show value types. A fusion's body is a cluster. Inputs are
// boxes, coloured by whether they are state. Outputs are ovals; a dashed edge
// leads from an output to the input whose next value it is.
std::string ToDot(const Graph& graph);

}  // namespace fusor::ir
