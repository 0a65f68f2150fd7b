#pragma once

// Bitmasks: one bit per bool. Only kernels access them, e.g. ReLU masks saved
// for the backward pass.

#include <cstdint>
#include <span>
#include <vector>

#include "codegen/kernel/kernel_ir.h"

namespace fusor::codegen {

// Converts bools, one byte per element, to bits and back. Element i is bit
// i % 8 of byte i / 8. Any nonzero byte is true; UnpackBits returns 0 or 1.
std::vector<uint8_t> PackBits(std::span<const uint8_t> bools);
std::vector<uint8_t> UnpackBits(std::span<const uint8_t> bits,
                                int64_t elements);

// Returns whether every access to the buffer covers whole bytes of bits with
// the adjacent lanes of a thread. Then no two threads share a byte, and no mask
// is needed.
bool AccessedByWholeBytes(const Kernel& kernel, int buffer);

}  // namespace fusor::codegen
