#pragma once

#include <cstdint>

#include "codegen/kernel/kernel_ir.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// The kernel of a sum over ranks: sums[i] = 0 + parts[i] + parts[stride + i] +
// parts[2 * stride + i] + .. for `elements` elements, in this order; those of
// 16 bit are added up in f32 and rounded once. Buffers: "parts", one rank's
// after the other, and "sums". REQUIRES: a float dtype; elements <= stride.
Kernel OrderedSumKernel(ir::DType dtype, int ranks, int64_t stride,
                        int64_t elements, const ir::Target& target);

}  // namespace fusor::codegen
