#pragma once

#include <memory>

#include "codegen/plan/plan.h"
#include "runtime/cpu/library_executable.h"

namespace fusor::cpu {

// Makes max_pool of f32 or bf16 run by loops of ours: oneDNN's drops NaN, which
// the IR counts as greater than any number. Null for other dtypes, and where
// operand and results differ in layout.
std::unique_ptr<LibraryExecutable> MakeMaxPoolExecutable(
    const codegen::LibraryCall& call);

}  // namespace fusor::cpu
