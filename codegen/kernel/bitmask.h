#pragma once

// Bools in memory at one bit an element: what kernels alone exchange, such as
// the masks of ReLUs that wait for the backward pass.

#include <cstdint>
#include <span>
#include <vector>

#include "codegen/kernel/kernel_ir.h"

namespace fusor::codegen {

// One byte an element, 0 or 1, to bits and back: element i is bit i % 8 of byte
// i / 8.
std::vector<uint8_t> PackBits(std::span<const uint8_t> bools);
std::vector<uint8_t> UnpackBits(std::span<const uint8_t> bits,
                                int64_t elements);

// Every access to the buffer is by whole groups of adjacent lanes that begin
// and end at bytes: no two tasks then share a byte, and no mask is needed.
bool AccessedByWholeBytes(const Kernel& kernel, int buffer);

}  // namespace fusor::codegen
