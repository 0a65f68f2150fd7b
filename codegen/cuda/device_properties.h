#pragma once

#include <cstdint>
#include <string>

#include "codegen/cuda/cudnn_descriptor.h"
#include "ir/target/target.h"

namespace fusor::cuda {

// Returns cuDNN's JSON description of a GPU to plan for
// (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION), built from the target's
// description and published specifications, not printed by a device. Throws
// kUsage for an unknown compute capability.
std::string DevicePropertiesJson(const ir::Target& target);

// Returns the description that cuDNN itself prints of a present GPU, given by
// its ordinal in the CUDA runtime. Plans built for it match the GPU. Throws
// kGraph with cuDNN's reason if it cannot query the driver.
std::string DevicePropertiesJson(int ordinal);
// Returns the description of the handle's device.
std::string DevicePropertiesJson(cudnnHandle_t handle);

}  // namespace fusor::cuda
