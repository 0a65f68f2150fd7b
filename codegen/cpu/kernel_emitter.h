#pragma once

#include <llvm/IR/Module.h>

#include "codegen/kernel/kernel_ir.h"

namespace fusor::cpu {

// Returns the name of a phase's function in a kernel's object file. It does not
// contain the kernel's name, which is not part of the kernel's identity.
std::string PhaseSymbol(size_t phase);

// Adds one function per phase to `module`:
//   void PhaseSymbol(k)(void* const* buffers, int64_t begin, int64_t end)
// It runs the phase's tasks begin .. end-1. Functions are stateless and may run
// in parallel on disjoint ranges. `native_bf16`: see ValueBuilder.
void EmitKernel(const codegen::Kernel& kernel, bool native_bf16,
                llvm::Module& module);

}  // namespace fusor::cpu
