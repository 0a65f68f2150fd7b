#pragma once

// All library calls that a GPU runs, by library.

#include <string_view>

#include "runtime/cuda/device_call.h"

namespace fusor::cuda {

// Returns "cudnn", "cublaslt", or "driver" for memory copies; empty if no
// library runs the call. Needs no device and none of these libraries.
std::string_view LibraryOf(const codegen::LibraryCall& call);

// Makes the calls of which LibraryOf knows the library; null for others.
MakeDeviceCall CudaLibraryCalls(
    const codegen::WarningHandler& warning = nullptr);

}  // namespace fusor::cuda
