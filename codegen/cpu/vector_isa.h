#pragma once

#include <string_view>

#include "ir/dtype.h"

namespace fusor::cpu {

// Instruction set of fusor's own library calls.
enum class VectorIsa { kPlain, kAvx2, kAvx512 };

// Returns whether they know elements of this dtype: f32 or bf16.
bool HasOwnCalls(ir::DType dtype);

// Returns the widest one of this machine. kAvx2 includes FMA; kAvx512 includes
// F, BW, VL and DQ.
VectorIsa WidestIsa();

// Returns "plain", "avx2" or "avx512".
std::string_view IsaName(VectorIsa isa);

}  // namespace fusor::cpu
