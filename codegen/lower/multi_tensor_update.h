#pragma once

#include "codegen/lower/lowered_kernel.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// The kernel of a "multi_tensor" fusion (passes::FuseUpdates): equal chains of
// elementwise ops over several tensors that lie one after the other, and copies
// of some of the results in other dtypes and layouts. One loop runs over
// neighbours without copies, and, with attribute copies_together, over those
// whose copies lie as they do, whose copies then are spans; any other tensor
// with copies has a phase of its own.
LoweredKernel LowerMultiTensorUpdate(const ir::Node& fusion,
                                     const ir::Target& target);

}  // namespace fusor::codegen
