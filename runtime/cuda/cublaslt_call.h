#pragma once

#include "runtime/cuda/device_call.h"

namespace fusor::cuda {

// Returns a function that makes the calls PrepareMatmul has described, and null
// for others. They share one handle: for the streams of one thread. Each call
// gets its algorithm when it is made, for the current context's device: the
// first from the heuristic that fits the planned workspace. Allowed are those
// that add partial sums, if any, in the compute type and in a fixed order. The
// choice depends on the problem, the device and cuBLASLt's version. Throws
// kDevice, naming the version and the function, if there is no cuBLASLt or no
// such algorithm. Not yet run on a GPU.
MakeDeviceCall CublasltCalls();

}  // namespace fusor::cuda
