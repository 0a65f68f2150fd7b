#pragma once

#include "codegen/kernel/kernel_ir.h"

namespace fusor::codegen {

// Interprets a kernel on the host, one task after the other. Reference for the
// code generation of every backend. `buffers` are the memory of
// Kernel::buffers, in their dtypes. Registers are held in double and rounded by
// the rules of kernel_ir.h, without FMA contraction. Throws kInternal on an
// access outside a buffer.
void InterpretKernel(const Kernel& kernel, void* const* buffers);

}  // namespace fusor::codegen
