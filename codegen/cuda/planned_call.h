#pragma once

#include "codegen/plan/plan.h"

namespace fusor::cuda {

// Returns whether the call is a copy between equal types and layouts.
bool IsMemoryCopy(const codegen::LibraryCall& call);

// Fills in the implementation of such a copy; false for any other call.
bool PrepareMemoryCopy(codegen::LibraryCall& call);

}  // namespace fusor::cuda
