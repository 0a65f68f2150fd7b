#pragma once

#include "ir/graph.h"

namespace fusor::passes {

// Gives every reader of a node that is free to recompute (IsFree) a separate
// copy, operands that are free included: a kernel can then index it as that
// reader requires. Returns true if it made a copy.
bool DuplicateFreeNodes(ir::Graph& graph);

}  // namespace fusor::passes
