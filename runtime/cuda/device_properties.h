#pragma once

#include <string>

#include "ir/target.h"

namespace fusor::cuda {

// A GPU as cuDNN describes devices that it chooses plans for, JSON text
// (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION), made of the target's description
// and of published specifications: no device has printed it. Throws kUsage for
// a compute capability that nothing is known of.
std::string DevicePropertiesJson(const ir::Target& target);

}  // namespace fusor::cuda
