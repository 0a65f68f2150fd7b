#pragma once

#include "runtime/cuda/device_call.h"

namespace fusor::cuda {

// Returns whether cuDNN has planned the call.
bool IsCudnnCall(const codegen::LibraryCall& call);

// Returns a function that makes the calls with a cuDNN execution plan
// (LibraryCall::plan), and null for others. Argument i has the unique id i + 1.
// The calls share one handle: for the streams of one thread. Throws kDevice if
// there is no cuDNN, its version is not the plan's, or it rejects the plan for
// the current context's device. Not yet run on a GPU.
//
// A plan for another device is rebuilt for this one, with the same engine and
// knobs. The first time, `warning` is called.
MakeDeviceCall CudnnCalls(codegen::WarningHandler warning = nullptr);

}  // namespace fusor::cuda
