#pragma once

#include <cstdint>
#include <span>

#include "ir/dtype.h"

namespace fusor::cpu {

// out[i] = a[i] + b[i] for n elements, each sum rounded to the type; out may be
// a or b. Vectorised; Gloo's own are scalar for f16 and lack bf16.
using WireSum = void (*)(void* out, const void* a, const void* b, size_t n);

// Null for types that are not summed: all but f16, bf16, f32 and f64.
WireSum WireSumOf(ir::DType dtype);

// out[i] = 0 + parts[0][i] + parts[1][i] + .. for n elements, in this order;
// those of 16 bit in f32, rounded once. `out` may be one of the parts.
// REQUIRES: WireSumOf(dtype).
void SumInOrder(ir::DType dtype, void* out, std::span<const void* const> parts,
                int64_t n);

}  // namespace fusor::cpu
