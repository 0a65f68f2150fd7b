#pragma once

#include <cstdint>
#include <string>

#include "codegen/cuda/cudnn_descriptor.h"
#include "ir/target/target.h"

namespace fusor::cuda {

// A GPU as cuDNN describes devices that it chooses plans for, JSON text
// (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION), made of the target's description
// and of published specifications: no device has printed it. Throws kUsage for
// a compute capability that nothing is known of.
std::string DevicePropertiesJson(const ir::Target& target);

// The same of a GPU that is there, by the CUDA runtime's number, as cuDNN
// itself prints it: plans that are built for it fit it. Throws kGraph with
// cuDNN's reason where it cannot ask the driver.
std::string DevicePropertiesJson(int ordinal);
// That of the device of a handle.
std::string DevicePropertiesJson(cudnnHandle_t handle);

}  // namespace fusor::cuda
