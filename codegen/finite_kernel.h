#pragma once

#include "codegen/lower_fusion.h"

namespace fusor::codegen {

// The kernel of `all_finite`, the only node of the body: each task looks at an
// equal share of every operand, or of operands that lie one after the other
// (attribute `groups`), of which the padding is left out. The order of the
// operands makes no difference to the result.
LoweredKernel LowerAllFinite(const ir::Graph& body, const ir::Target& target);

}  // namespace fusor::codegen
