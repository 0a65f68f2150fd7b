#pragma once

#include "codegen/lower/lowered_kernel.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// Lowers space_to_depth. A thread computes its channels of both rows of a 2x2
// block of pixels. The zero row and the zero column have separate phases.
// Computes in f32 and rounds on store.
//
// Images are row-major; the result has any layout without tiles. REQUIRES: it
// is the only node of the body; the body's inputs are its operands, in order.
LoweredKernel LowerSpaceToDepth(const ir::Graph& body,
                                const ir::Target& target);

}  // namespace fusor::codegen
