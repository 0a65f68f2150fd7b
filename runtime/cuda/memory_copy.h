#pragma once

#include "runtime/cuda/device_call.h"

namespace fusor::cuda {

// Makes copies that leave every byte in its order (IsMemoryCopy) ready, by the
// driver; null for any other call.
std::unique_ptr<DeviceCall> MakeMemoryCopy(const codegen::LibraryCall& call);

}  // namespace fusor::cuda
