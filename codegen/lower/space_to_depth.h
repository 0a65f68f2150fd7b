#pragma once

#include "codegen/lower/lowered_kernel.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// The kernel of space_to_depth: a thread makes both rows of a 2x2 block of
// pixels, whose channels lie together. The row and the column of zeros are
// phases of their own. f32 arithmetic, rounded by the store.
//
// Images row-major, any layout without tiles for the result. REQUIRES: it is
// the only node of the body, in which the operands stand in its order.
LoweredKernel LowerSpaceToDepth(const ir::Graph& body,
                                const ir::Target& target);

}  // namespace fusor::codegen
