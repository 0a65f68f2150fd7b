#pragma once

#include <span>
#include <string>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "codegen/plan/plan.h"

namespace fusor::test {

// Returns the contents of the kernel's buffers, drawn from the seed: floats in
// [-2, 2), integers from 0 to 3 or bools in its operands, random bytes
// elsewhere.
std::vector<std::string> DrawBuffers(const codegen::Kernel& kernel,
                                     uint64_t seed);

// Compares the kernel's results after the interpreter and after the emulator,
// as numbers: NaN equals NaN. Returns what is wrong, or nothing if they are
// equal and the emulator found no fault. The second form compiles all kernels
// together, and runs each once more with its results stored over the operands
// that they may overwrite.
std::string CompareWithInterpreter(const codegen::Kernel& kernel,
                                   const std::vector<std::string>& buffers);
std::vector<std::string> CompareWithInterpreter(
    std::span<const codegen::CompiledKernel> kernels, uint64_t seed);

}  // namespace fusor::test
