#pragma once

#include <cstdint>

#include "ir/graph.h"

namespace fusor::codegen {

// Arithmetic operations of a node, for profiles: a multiply-add is two; each
// element of an elementwise result and each operand element of a reduction or
// pooling is one; a fusion is the sum of its body; moving data is none.
int64_t NodeFlops(const ir::Node& node);

}  // namespace fusor::codegen
