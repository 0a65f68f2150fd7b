#pragma once

#include <vector>

#include "codegen/kernel/kernel_ir.h"

namespace fusor::codegen {

// These throw kInternal, naming kernel, statement and buffer, for what is not
// proved. A proof looks at the steps of the indices. If these do not suffice,
// it enumerates the elements, up to 4 Mi per buffer.
//
// REQUIRES: indices use only axes that are open and stay inside their buffers.

// Proves that no two threads of a phase touch one element that one of them
// stores (threads of a GPU, elsewhere tasks), and that every element that is
// loaded of scratch memory was stored before.
void CheckAccesses(const Kernel& kernel);

// Proves that every element of a result is stored. `padded`: which buffers hold
// several tensors, each padded to kBufferAlignment bytes; only the padding of
// these may stay as it is.
void CheckResults(const Kernel& kernel, const std::vector<bool>& padded = {});

}  // namespace fusor::codegen
