#pragma once

#include <memory>

#include "codegen/plan/plan.h"
#include "runtime/cpu/library_executable.h"

namespace fusor::cpu {

// Runs any op in any dtype by the interpreter, typed mode. Slow, and it
// allocates: for what the library lacks.
std::unique_ptr<LibraryExecutable> MakeReferenceExecutable(
    const codegen::LibraryCall& call);

}  // namespace fusor::cpu
