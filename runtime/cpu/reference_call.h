#pragma once

#include <memory>

#include "codegen/plan/plan.h"
#include "runtime/cpu/library_executable.h"

namespace fusor::cpu {

// Returns an executable that interprets any op in any dtype, in typed mode.
// Slow and allocates: only for what the libraries lack.
std::unique_ptr<LibraryExecutable> MakeReferenceExecutable(
    const codegen::LibraryCall& call);

}  // namespace fusor::cpu
