#pragma once

#include "runtime/cuda/device_call.h"

namespace fusor::cuda {

// Makes calls that PrepareMatmul has described, all with one handle: for the
// streams of one thread. cuBLASLt is asked for an algorithm of each when it is
// made, for the device of the current context: the first that its heuristic
// names, of those that add up parts of a sum, if at all, in the arithmetic's
// dtype and in a fixed order, and that the planned workspace is enough for. So
// the choice depends on the problem, the device and cuBLASLt's version. Null
// for other calls. Throws kDevice, naming the version and its function, where
// there is no cuBLASLt or it has no such algorithm. No GPU has run what it
// makes.
MakeDeviceCall CublasltCalls();

}  // namespace fusor::cuda
