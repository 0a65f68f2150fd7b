#pragma once

// Where the vendor libraries plug into the device.

#include <cuda.h>

#include <functional>
#include <memory>

#include "codegen/plan/plan.h"
#include "runtime/backend/backend.h"

namespace fusor::cuda {

// A library call that is ready to run. Immutable.
class DeviceCall {
 public:
  virtual ~DeviceCall() = default;
  // Gives its work to the stream, which may be capturing a graph: no
  // allocation, no synchronisation, no other stream. `args`: device addresses
  // of operands, results and the workspace, where there is one.
  virtual void Enqueue(CUstream stream, void* const* args) const = 0;
};

// Makes the call ready on the current context; null where it is none that it
// knows.
using MakeDeviceCall =
    std::function<std::unique_ptr<DeviceCall>(const codegen::LibraryCall&)>;

}  // namespace fusor::cuda
