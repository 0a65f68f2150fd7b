#pragma once

#include <memory>

#include "codegen/plan/plan.h"
#include "runtime/cpu/library_executable.h"

namespace fusor::cpu {

// Returns fusor's own max_pool for f32 or bf16. oneDNN's drops NaN, which the
// IR orders above any number. Null for other dtypes, or if the layouts of
// operand and results differ.
std::unique_ptr<LibraryExecutable> MakeMaxPoolExecutable(
    const codegen::LibraryCall& call);

}  // namespace fusor::cpu
