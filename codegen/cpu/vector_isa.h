#pragma once

#include <string_view>

namespace fusor::cpu {

// Instruction set of fusor's own library calls.
enum class VectorIsa { kPlain, kAvx2, kAvx512 };

// Returns the widest one of this machine. kAvx2 includes FMA; kAvx512 includes
// F, BW, VL and DQ.
VectorIsa WidestIsa();

// Returns "plain", "avx2" or "avx512".
std::string_view IsaName(VectorIsa isa);

}  // namespace fusor::cpu
