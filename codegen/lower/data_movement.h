#pragma once

#include "codegen/lower/lowered_kernel.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// Kernels of the ops that place operands into parts of their result, `concat`
// and `pad`: one phase an operand, after one that fills the gaps of a pad;
// results row-major. And of `copy`, whose operand is all of its result, in
// another layout. REQUIRES: one of these is the only node of the body.
LoweredKernel LowerDataMovement(const ir::Graph& body,
                                const ir::Target& target);

}  // namespace fusor::codegen
