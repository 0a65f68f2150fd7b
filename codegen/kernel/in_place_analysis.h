#pragma once

#include "codegen/kernel/kernel_ir.h"

namespace fusor::codegen {

// Returns true if buffer `result` may alias buffer `operand` exactly: the last
// load of every element of the operand precedes the store of that element of
// the result, in any order of a phase's tasks. Derives this from the loads and
// stores alone. Returns false if they do not prove it.
//
// REQUIRES: Verify(kernel) holds.
bool MayOverwrite(const Kernel& kernel, int operand, int result);

}  // namespace fusor::codegen
