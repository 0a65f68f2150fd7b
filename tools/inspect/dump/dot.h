#pragma once

#include <string>

#include "ir/graph.h"

namespace fusor::ir {

// The graph in graphviz' language, for `dot -Tsvg`. Nodes show op and
// location, edges the types of values; the body of a fusion is a cluster.
// Inputs are boxes coloured by whether they are state, outputs ovals; a dashed
// edge leads from an output to the input whose next value it is.
std::string ToDot(const Graph& graph);

}  // namespace fusor::ir
