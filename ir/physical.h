#pragma once

#include "ir/interpreter.h"

namespace fusor::ir {

// Between the interpreter's tensors and memory as a type describes it: dtype's
// bits in the layout's order. `memory` holds type.num_bytes() bytes.
Tensor FromMemory(const TensorType& type, const void* memory);
void ToMemory(const Tensor& tensor, void* memory);

}  // namespace fusor::ir
