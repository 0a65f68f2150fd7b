#pragma once

#include "passes/passes.h"

namespace fusor::passes {

// Replaces pads that no kernel could share with their readers by gathers and
// selections; see index_pads.cc. Part of move_reshapes.
bool IndexPads(ir::Graph& graph, PassContext& context);

}  // namespace fusor::passes
