#pragma once

#include <functional>

#include "ir/graph.h"
#include "passes/passes.h"

namespace fusor::passes {

// Puts a `fusion` in the place of a node, whose body is a graph of that node
// alone after `lower`, which replaces it by what kernels can hold. Drops
// results that nobody reads, and replaces those that are operands by these.
// Inserts no fusion if no result is left.
void SeparateKernel(
    ir::Graph& graph, ir::Node* node, PassContext& context,
    const std::function<void(ir::Graph& body, ir::Node* node)>& lower);

}  // namespace fusor::passes
