#pragma once

#include <cstdint>

#include "ir/graph.h"

namespace fusor::codegen {

// Returns the arithmetic operations of a node, for profiles. A multiply-add
// counts as two. Elementwise ops count one per result element; reductions and
// library ops without multiply-adds (pooling, copies) one per operand element.
// A fusion counts the sum of its body; a library fusion counts its library op
// only. Other data movement counts none.
int64_t NodeFlops(const ir::Node& node);

}  // namespace fusor::codegen
