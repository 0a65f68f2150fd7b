#pragma once

// All library calls that a GPU runs, by the library that each belongs to.

#include <string_view>

#include "runtime/cuda/device_call.h"

namespace fusor::cuda {

// "cudnn", "cublaslt", or "driver" for copies of memory; empty for a call that
// nothing here runs. Needs no device and none of these libraries.
std::string_view LibraryOf(const codegen::LibraryCall& call);

// Makes the calls of which LibraryOf knows the library; null for others.
MakeDeviceCall CudaLibraryCalls(
    const codegen::WarningHandler& warning = nullptr);

}  // namespace fusor::cuda
