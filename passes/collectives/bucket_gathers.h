#pragma once

#include "ir/graph.h"
#include "passes/passes.h"

namespace fusor::passes {

// Buckets the all_gathers of parameters at the start of the graph
// (GathersParameters) and sorts them in the order of need. Uses the partition
// for gradients with time reversed: a collective that must end when its first
// parameter is needed corresponds to one that starts when its last gradient is
// ready. Returns true if there are any.
bool BucketGathers(ir::Graph& graph, PassContext& context);

}  // namespace fusor::passes
