#pragma once

#include "codegen/plan/plan.h"

namespace fusor::cuda {

// Whether the call is a copy that leaves every byte in its order.
bool IsMemoryCopy(const codegen::LibraryCall& call);

// Names the implementation of such a copy; false for any other call.
bool PrepareMemoryCopy(codegen::LibraryCall& call);

}  // namespace fusor::cuda
