#pragma once

#include "ir/graph.h"

namespace fusor::passes {

class PassContext;

// Erases pure nodes whose results nothing needs, users before what they use;
// each erasure takes one unit of fuel from `pass`. True when there were any.
bool EraseDeadNodes(ir::Graph& graph, PassContext& context,
                    const std::string& pass);

// The same for passes that cannot do with such nodes; no rewrite of theirs.
bool EraseDeadNodes(ir::Graph& graph);

}  // namespace fusor::passes
