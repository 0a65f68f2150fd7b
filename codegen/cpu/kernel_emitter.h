#pragma once

#include <llvm/IR/Module.h>

#include "codegen/kernel/kernel_ir.h"

namespace fusor::cpu {

// Name of the function of a phase in a kernel's object file. Independent of the
// kernel's own name, which is not part of its identity.
std::string PhaseSymbol(size_t phase);

// Adds one function a phase,
//   void PhaseSymbol(k)(void* const* buffers, int64_t begin, int64_t end)
// that runs the phase's tasks begin .. end-1. Functions keep no state and may
// run in parallel on disjoint ranges. `native_bf16`: see ValueBuilder.
void EmitKernel(const codegen::Kernel& kernel, bool native_bf16,
                llvm::Module& module);

}  // namespace fusor::cpu
