#pragma once

#include <cstdint>

#include "ir/dtype.h"

namespace fusor::cpu {

// out[i] = a[i] + b[i] for n elements, each sum rounded to the type; out may be
// a or b. Vectorised; Gloo's own are scalar for f16 and lack bf16.
using WireSum = void (*)(void* out, const void* a, const void* b, size_t n);

// Null for types that are not summed: all but f16, bf16, f32 and f64.
WireSum WireSumOf(ir::DType dtype);

// out[i] = 0 + parts[0][i] + parts[1][i] + .. for n elements, in this order;
// those of 16 bit in f32, rounded once. `parts` are `count` arrays, one after
// the other in memory, `stride` elements apart. REQUIRES: WireSumOf(dtype).
void SumInOrder(ir::DType dtype, void* out, const void* parts, int count,
                int64_t stride, int64_t n);

}  // namespace fusor::cpu
