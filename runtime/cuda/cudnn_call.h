#pragma once

#include "runtime/cuda/device_call.h"

namespace fusor::cuda {

// Whether cuDNN has planned the call.
bool IsCudnnCall(const codegen::LibraryCall& call);

// Makes calls that run cuDNN's execution plans (LibraryCall::plan), argument i
// under the unique id i + 1, all with one handle: for the streams of one
// thread. Null for calls without such a plan. Throws kDevice where there is no
// cuDNN, another version than the plan's, or it refuses the plan for the device
// of the current context. No GPU has run what it makes.
//
// A plan for another device is built anew for this one, of the same engine with
// the same knobs; the first time, `warning` is told.
MakeDeviceCall CudnnCalls(codegen::WarningHandler warning = nullptr);

}  // namespace fusor::cuda
