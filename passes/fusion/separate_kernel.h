#pragma once

#include <functional>

#include "ir/graph.h"
#include "passes/passes.h"

namespace fusor::passes {

// Replaces a node by an unfused kernel: a `fusion` whose body is that node
// alone, rewritten by `lower` into fusible ops. Drops unused results, and
// replaces results that are operands by those operands. If no result is left,
// erases the node and adds no fusion.
void SeparateKernel(
    ir::Graph& graph, ir::Node* node, PassContext& context,
    const std::function<void(ir::Graph& body, ir::Node* node)>& lower);

}  // namespace fusor::passes
