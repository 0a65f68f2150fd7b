#pragma once

// A GPU as a runtime::Device, by the driver alone. No GPU has run this code;
// tests run it on a driver of their own that emulates one.

#include <cuda.h>

#include <memory>
#include <string>

#include "runtime/backend/backend.h"
#include "runtime/cuda/device_call.h"

namespace fusor::cuda {

// Device memory that plans leave free: for copies from the host, kernels' code,
// the driver's own needs.
inline constexpr size_t kReservedBytes = size_t{384} << 20;

// Device 0 is this rank's own (DeviceOfRank), the others those that the driver
// has under these numbers. Throws kDevice when there is no such GPU, or no
// driver. `make_call` makes the
// library calls of plans; what it does not know is refused with kDevice when a
// plan is loaded.
std::unique_ptr<runtime::Device> OpenCudaDevice(
    int ordinal, const runtime::BackendOptions& options,
    MakeDeviceCall make_call);

// The driver's stream behind one that such a device has made.
CUstream DriverStreamOf(const runtime::Stream& stream);

// The built-in description that fits this rank's GPU best (DeviceOfRank): of
// its name, else of its compute capability. Empty where there is no driver or
// no GPU. Throws kDevice for a GPU that none describes.
std::string TargetOfDevice();

}  // namespace fusor::cuda
