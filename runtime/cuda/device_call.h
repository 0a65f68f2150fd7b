#pragma once

// The interface through which vendor libraries plug into the device.

#include <cuda.h>

#include <functional>
#include <memory>

#include "codegen/plan/plan.h"
#include "runtime/backend/backend.h"

namespace fusor::cuda {

// A loaded library call. Immutable.
class DeviceCall {
 public:
  virtual ~DeviceCall() = default;
  // Enqueues the call on the stream, which may be capturing a graph: it must
  // not allocate, synchronise or use another stream. `args`: device addresses
  // of operands, results and the workspace, if any.
  virtual void Enqueue(CUstream stream, void* const* args) const = 0;
};

// Loads the call on the current context; null if it does not support the call.
using MakeDeviceCall =
    std::function<std::unique_ptr<DeviceCall>(const codegen::LibraryCall&)>;

}  // namespace fusor::cuda
