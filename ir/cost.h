#pragma once

#include <cstdint>

#include "ir/graph.h"

namespace fusor::ir {

// Multiply-accumulates of a convolution (or its gradients) or matmul; 0 for
// every other op. Padding counts, as is customary.
int64_t NodeMacs(const Node& node);
int64_t GraphMacs(const Graph& graph);

// Bytes that the node must move at least: its distinct operands and results.
int64_t NodeBytes(const Node& node);

}  // namespace fusor::ir
