#pragma once

// A GPU as a runtime::Device; uses only the driver.

#include <cuda.h>

#include <memory>
#include <optional>

#include "ir/target/target.h"
#include "runtime/backend/backend.h"
#include "runtime/cuda/library_calls.h"

namespace fusor::cuda {

// Device memory in bytes that plans leave free for copies from the host, kernel
// code and the driver.
inline constexpr size_t kReservedBytes = size_t{384} << 20;

// Opens a GPU: ordinal 0 is this rank's own (DeviceOfRank), others are the
// driver's ordinals. Throws kDevice if there is no such GPU or no driver.
// `make_call` makes the library calls of plans. Loading a call for which it
// returns null throws kDevice.
std::unique_ptr<runtime::Device> OpenCudaDevice(
    int ordinal, const runtime::BackendOptions& options,
    MakeDeviceCall make_call);

// Returns the driver's stream of a stream created by such a device.
CUstream DriverStreamOf(const runtime::Stream& stream);

// Returns the built-in target that best matches this rank's GPU (DeviceOfRank),
// by name, else by compute capability. A GPU of an unknown compute capability
// gets the target of the newest older one, but with its own capability and
// number of multiprocessors, named e.g. "sm_89". Null without a driver or a
// GPU. Throws kDevice if the GPU is older than all targets.
std::optional<ir::Target> TargetOfDevice();

}  // namespace fusor::cuda
