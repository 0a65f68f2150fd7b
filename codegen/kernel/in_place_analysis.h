#pragma once

#include "codegen/kernel/kernel_ir.h"

namespace fusor::codegen {

// True when the kernel gives the same results with buffer `result` lying
// exactly over buffer `operand`: every element of the operand is loaded for the
// last time before that element of the result is stored, whatever the order of
// a phase's tasks. Read off the loads and stores alone, with no regard to how
// the kernel came about; false where they do not show it.
//
// REQUIRES: Verify(kernel) holds.
bool MayOverwrite(const Kernel& kernel, int operand, int result);

}  // namespace fusor::codegen
