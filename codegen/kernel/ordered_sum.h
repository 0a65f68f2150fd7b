#pragma once

#include <cstdint>

#include "codegen/kernel/kernel_ir.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// Returns the kernel that sums one part per rank, in the order of the ranks:
// sums[i] = 0 + parts[i] + parts[stride + i] + parts[2 * stride + i] + ...
// for i < elements. 16-bit floats are summed in f32 and rounded once. Buffers,
// both of `dtype`: "parts" [ranks * stride] and "sums" [elements]. REQUIRES: a
// float dtype; elements <= stride.
Kernel OrderedSumKernel(ir::DType dtype, int ranks, int64_t stride,
                        int64_t elements, const ir::Target& target);

}  // namespace fusor::codegen
