#pragma once

// All library calls that a GPU runs, by library. All calls of cuDNN share one
// handle, and so do those of cuBLASLt: for the streams of one thread.

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "codegen/plan/plan.h"
#include "runtime/backend/backend.h"

namespace fusor::cuda {

// A loaded library call, the interface between vendor libraries and the device.
// Immutable.
class DeviceCall {
 public:
  virtual ~DeviceCall() = default;
  // Enqueues the call on the stream, which may be capturing a graph: it must
  // not allocate, synchronise or use another stream. `args`: device addresses
  // of operands, results and the workspace, if any.
  virtual void Enqueue(CUstream stream, void* const* args) const = 0;
  // The size of the workspace that Enqueue's last argument must have instead of
  // the planned one, which is too small for this device; 0 if it is not.
  virtual int64_t unplanned_workspace_bytes() const { return 0; }
};

// Loads the call on the current context; null if it does not support the call.
using MakeDeviceCall =
    std::function<std::unique_ptr<DeviceCall>(const codegen::LibraryCall&)>;

// Returns a function that makes every call that has a library (LibraryOf), and
// null for others.
MakeDeviceCall CudaLibraryCalls(
    const codegen::WarningHandler& warning = nullptr);

// Returns a function that makes the calls PrepareMatmul has described, and null
// for others. Each call gets its algorithm when it is made, for the current
// context's device: the heuristic's first that fits the planned workspace and
// adds partial sums, if any, in the compute type and in a fixed order. The
// choice depends on the problem, the device and cuBLASLt's version. Throws
// kDevice, naming the version and the function, if there is no cuBLASLt or no
// such algorithm.
MakeDeviceCall CublasltCalls();

// Returns a function that makes the calls with a cuDNN execution plan
// (LibraryCall::plan), and null for others. Argument i has the unique id i + 1.
// Throws kDevice if there is no cuDNN, its version is not the plan's, or it
// rejects the plan for the current context's device.
//
// A plan for another device is rebuilt for this one, with the same engine and
// knobs. The first time, `warning` is called. A plan for a description of a
// device may need an unplanned workspace on the device itself.
MakeDeviceCall CudnnCalls(codegen::WarningHandler warning = nullptr);

// Loads a copy between equal layouts (IsMemoryCopy), which the driver runs;
// null for any other call.
std::unique_ptr<DeviceCall> MakeMemoryCopy(const codegen::LibraryCall& call);

}  // namespace fusor::cuda
