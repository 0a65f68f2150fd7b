#pragma once

#include <span>
#include <string>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "codegen/plan/plan.h"

namespace fusor::test {

// The bytes of the kernel's buffers: numbers drawn from the seed in what it
// reads - floats in [-2, 2), integers from 0 to 3, bools -, garbage elsewhere.
std::vector<std::string> DrawBuffers(const codegen::Kernel& kernel,
                                     uint64_t seed);

// Compares every byte that the kernel's results have after the interpreter and
// after the emulator, as numbers: NaN equals NaN. Empty when they are equal and
// the emulator found no fault, else what is wrong. The second form compiles all
// kernels together and runs each once more with its results over the operands
// that they may overwrite.
std::string CompareWithInterpreter(const codegen::Kernel& kernel,
                                   const std::vector<std::string>& buffers);
std::vector<std::string> CompareWithInterpreter(
    std::span<const codegen::CompiledKernel> kernels, uint64_t seed);

}  // namespace fusor::test
