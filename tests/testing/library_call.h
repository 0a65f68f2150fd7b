#pragma once

#include "codegen/plan.h"

namespace fusor::test {

// Does what the vendor library would, by the interpreter's rules in typed mode.
// `args`: operands, results and the workspace, where there is one: it is filled
// with garbage.
void RunLibraryCall(const codegen::LibraryCall& call, void* const* args);

}  // namespace fusor::test
