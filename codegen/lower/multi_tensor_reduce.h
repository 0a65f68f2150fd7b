#pragma once

#include "codegen/lower/lowered_kernel.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// Lowers `all_finite` or `sum_of_squares`, the only node of the body. Each task
// reduces an equal share of every operand. Contiguous operands (attribute
// `groups`) are one buffer; their padding is skipped. The order of a sum does
// not depend on the groups. The result of all_finite does not depend on the
// order of the operands.
LoweredKernel LowerMultiTensorReduce(const ir::Graph& body,
                                     const ir::Target& target);

}  // namespace fusor::codegen
