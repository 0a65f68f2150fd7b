#pragma once

#include "codegen/lower/lowered_kernel.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// Lowers a "multi_tensor" fusion (passes::FuseUpdates): equal chains of
// elementwise ops over several contiguous tensors, and copies of some results
// in other dtypes and layouts. One phase covers adjacent tensors without copies
// or, with attribute copies_together, adjacent tensors whose copies are
// contiguous in the same order; these copies share a buffer. Any other tensor
// with copies gets a separate phase.
LoweredKernel LowerMultiTensorUpdate(const ir::Node& fusion,
                                     const ir::Target& target);

}  // namespace fusor::codegen
