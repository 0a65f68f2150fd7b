#pragma once

#include "codegen/lower_fusion.h"

namespace fusor::codegen {

// The kernel of a "multi_tensor" fusion (passes::FuseUpdates): equal chains of
// elementwise ops over several tensors that lie one after the other, and copies
// of some of the results in other dtypes and layouts. Without copies one loop
// runs over all tensors; a tensor with copies has a phase of its own.
LoweredKernel LowerUpdates(const ir::Node& fusion, const ir::Target& target);

}  // namespace fusor::codegen
