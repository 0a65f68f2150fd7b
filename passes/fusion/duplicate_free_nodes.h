#pragma once

#include "ir/graph.h"

namespace fusor::passes {

// Gives every reader of a free node (IsFree) a copy of its own, with what leads
// to it: a kernel then indexes it as that reader wants. True when it made one.
bool DuplicateFreeNodes(ir::Graph& graph);

}  // namespace fusor::passes
