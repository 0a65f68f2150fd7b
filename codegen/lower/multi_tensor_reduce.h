#pragma once

#include "codegen/lower/lowered_kernel.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// The kernel of `all_finite` or `sum_of_squares`, the only node of the body:
// each task looks at an equal share of every operand. Operands that lie one
// after the other (attribute `groups`) are one buffer, whose padding is left
// out. The order of a sum does not depend on the groups, nor does that of the
// operands make a difference to all_finite.
LoweredKernel LowerMultiTensorReduce(const ir::Graph& body,
                                     const ir::Target& target);

}  // namespace fusor::codegen
