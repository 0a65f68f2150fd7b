#pragma once

#include "runtime/cuda/device_call.h"

namespace fusor::cuda {

// A copy that leaves every byte in its order.
bool IsMemoryCopy(const codegen::LibraryCall& call);

// Names the implementation of such a copy; false for any other call.
bool PrepareMemoryCopy(codegen::LibraryCall& call);

// Makes such copies ready, by the driver; null for any other call.
std::unique_ptr<DeviceCall> MakeMemoryCopy(const codegen::LibraryCall& call);

}  // namespace fusor::cuda
