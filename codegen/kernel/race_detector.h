#pragma once

#include <vector>

#include "codegen/kernel/kernel_ir.h"

namespace fusor::codegen {

// Both functions throw kInternal with kernel, statement and buffer if a proof
// fails. A proof first uses the strides of the indices. If they do not suffice,
// it enumerates the elements, up to 4 Mi per buffer.
//
// REQUIRES: indices use only open axes and stay inside their buffers.

// Proves that no two threads of a phase (on a CPU: tasks) access the same
// element if one of them stores it, and that every element loaded from scratch
// memory was stored before.
void CheckAccesses(const Kernel& kernel);

// Proves that every element of every result is stored. `padded[b]`: buffer b
// holds several tensors, each padded to kBufferAlignment bytes. The padding
// need not be stored.
void CheckResults(const Kernel& kernel, const std::vector<bool>& padded = {});

}  // namespace fusor::codegen
