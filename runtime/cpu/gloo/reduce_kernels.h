#pragma once

#include <cstdint>
#include <span>

#include "ir/dtype.h"

namespace fusor::cpu {

// Computes out[i] = a[i] + b[i] for n elements, each rounded to the type; out
// may be a or b. Vectorised; Gloo's functions are scalar for f16 and lack bf16.
using WireSum = void (*)(void* out, const void* a, const void* b, size_t n);

// Returns null for types other than f16, bf16, f32 and f64.
WireSum WireSumOf(ir::DType dtype);

// Computes out[i] = 0 + parts[0][i] + parts[1][i] + .. for n elements, in this
// order. 16-bit elements are summed in f32 and rounded once. `out` may be one
// of the parts. REQUIRES: WireSumOf(dtype).
void SumInOrder(ir::DType dtype, void* out, std::span<const void* const> parts,
                int64_t n);

}  // namespace fusor::cpu
