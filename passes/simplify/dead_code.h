#pragma once

#include "ir/graph.h"

namespace fusor::passes {

class PassContext;

// Erases pure nodes without used results, users before their operands. Each
// erasure takes one unit of fuel from `pass`. Returns true if it erased any.
bool EraseDeadNodes(ir::Graph& graph, PassContext& context,
                    const std::string& pass);

// The same without fuel, for passes that cannot work on graphs with dead nodes.
bool EraseDeadNodes(ir::Graph& graph);

}  // namespace fusor::passes
