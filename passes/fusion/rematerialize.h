#pragma once

#include <vector>

#include "ir/graph.h"
#include "passes/passes.h"

namespace fusor::passes {

// Recomputes elementwise values in the kernels that read them, where that costs
// less than to store and load them, in time and memory: the backward pass
// computes an activation's derivative from the operand of the activation.
//
// `clusters` has the nodes of each future kernel, in topological order. A value
// that one cluster computes for others is recomputed from what these read, from
// values that are stored anyway, and from small results of the first cluster.
// Adds the copied nodes to the graph and to the clusters of their readers, and
// erases nodes that are no longer read. Takes the latest values first, so that
// a chain of values is recomputed from its beginning.
void Rematerialize(ir::Graph& graph, PassContext& context,
                   std::vector<std::vector<ir::Node*>>& clusters);

}  // namespace fusor::passes
