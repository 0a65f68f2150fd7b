#pragma once

#include "ir/graph.h"
#include "passes/passes.h"

namespace fusor::passes {

// Puts together, and in the order in which they are needed at the graph's
// beginning, what gathers parameters there (GathersParameters): as gradients
// are, seen backwards in time. A collective that has to end when the first of
// its parameters is needed is one that starts when the last of its gradients is
// ready. True when there are any.
bool BucketGathers(ir::Graph& graph, PassContext& context);

}  // namespace fusor::passes
