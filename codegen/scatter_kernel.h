#pragma once

#include "codegen/lower_fusion.h"

namespace fusor::codegen {

// Kernels of the ops that place operands into parts of their result, `concat`
// and `pad`: one phase an operand, after one that fills the gaps of a pad.
// Result row-major. REQUIRES: the node is one of these, alone in its fusion.
LoweredKernel LowerScatter(const ir::Node& node, const ir::Target& target);

}  // namespace fusor::codegen
