#pragma once

#include <string>

#include "codegen/plan.h"
#include "codegen/target_compiler.h"

namespace fusor::codegen {

// Fills in fingerprint and binary of the plan's kernels, from the cache in
// folder `cache` where it has them, and stores there what it had to compile.
// An empty `cache` compiles all. Compiles on `threads` threads, 0: one a core.
void CompileKernels(Plan& plan, const TargetCompiler& compiler, int threads,
                    const std::string& cache);

}  // namespace fusor::codegen
