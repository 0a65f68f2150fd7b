#pragma once

#include "runtime/cuda/device_call.h"

namespace fusor::cuda {

// Loads a copy between equal layouts (IsMemoryCopy), which the driver runs;
// null for any other call.
std::unique_ptr<DeviceCall> MakeMemoryCopy(const codegen::LibraryCall& call);

}  // namespace fusor::cuda
