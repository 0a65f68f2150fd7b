#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "codegen/plan/plan.h"

namespace fusor::cuda {

// Which library runs a call on a GPU. Needs no device and no library.

// Returns whether the call is a copy between equal types and layouts.
bool IsMemoryCopy(const codegen::LibraryCall& call);

// If IsMemoryCopy, fills in the call's implementation and returns true.
// Otherwise returns false.
bool PrepareMemoryCopy(codegen::LibraryCall& call);

// Returns the cuDNN version that planned the call, as cudnnGetVersion does;
// nullopt if cuDNN has not planned it.
std::optional<size_t> CudnnVersionOf(const codegen::LibraryCall& call);

// Returns "cudnn", "cublaslt", or "driver" for memory copies; empty if no
// library runs the call.
std::string_view LibraryOf(const codegen::LibraryCall& call);

}  // namespace fusor::cuda
