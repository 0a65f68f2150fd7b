#pragma once

// All library calls that a GPU runs, by library.

#include <string_view>

#include "runtime/cuda/device_call.h"

namespace fusor::cuda {

// Returns "cudnn", "cublaslt", or "driver" for memory copies; empty if no
// library runs the call. Needs no device and none of these libraries.
std::string_view LibraryOf(const codegen::LibraryCall& call);

// Returns a function that makes the calls for which LibraryOf names a library;
// null for others.
MakeDeviceCall CudaLibraryCalls(
    const codegen::WarningHandler& warning = nullptr);

}  // namespace fusor::cuda
