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

// The following return a descriptor of a GPU to plan for. Throw kGraph with
// cuDNN's reason.

// The GPU that the JSON describes. It need not be present.
CudnnDescriptor DescribeDevice(const std::string& json);
// A present GPU, given by its ordinal in the CUDA runtime. Its context must be
// current: cuDNN runs kernels that ask how multiprocessors are grouped, which
// the JSON lacks, and which workspace sizes depend on.
CudnnDescriptor DescribeDevice(int ordinal);
// The handle's GPU. As above, its context must be current.
CudnnDescriptor DescribeDevice(cudnnHandle_t handle);

}  // namespace fusor::cuda
