#pragma once

#include "codegen/kernel/kernel_ir.h"

namespace fusor::codegen {

// Runs a kernel plainly on the host, one task after the other: the reference
// for every backend's code generation. `buffers` as Kernel::buffers, in their
// dtypes. Registers are held in double and rounded as the kernel's rules say,
// without contraction. Throws kInternal on an access outside a buffer.
void InterpretKernel(const Kernel& kernel, void* const* buffers);

}  // namespace fusor::codegen
