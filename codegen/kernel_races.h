#pragma once

#include "codegen/kernel_ir.h"

namespace fusor::codegen {

// Throws kInternal when two tasks of the phase may touch the same element of a
// buffer and one of them stores to it. Proves freedom from races by the
// coefficients of the indices where it can, else by enumerating all accesses
// (up to 4 Mi of them; a kernel that needs more is refused).
//
// REQUIRES: indices use only axes that are open and stay inside their buffers.
void CheckRaces(const Kernel& kernel, const Phase& phase);

}  // namespace fusor::codegen
