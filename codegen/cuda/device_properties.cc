#include "codegen/cuda/device_properties.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "ir/support/error.h"

namespace fusor::cuda {
namespace {

// What target descriptions lack, from NVIDIA's data sheets. A user-defined
// target uses the first row of its compute capability, or of an older one.
struct Specification {
  std::string_view target;
  std::string_view name;
  int compute_capability;
  int64_t memory_bytes;
  int64_t clock_khz;
  int64_t memory_clock_khz;
  int64_t shared_bytes;  // that a block may request
};

constexpr Specification kSpecifications[] = {
    {"nvidia-a100", "NVIDIA A100-SXM4-80GB", 80, 85'899'345'920, 1'410'000,
     1'593'000, 166'912},
    {"nvidia-h200", "NVIDIA H200", 90, 150'754'820'096, 1'980'000, 3'201'000,
     232'448},
    {"nvidia-h100", "NVIDIA H100 80GB HBM3", 90, 85'899'345'920, 1'980'000,
     2'619'000, 232'448},
    {"nvidia-b200", "NVIDIA B200", 100, 193'273'528'320, 1'965'000, 3'996'000,
     232'448},
};

const Specification& Find(const ir::Target& target) {
  const auto find = [](auto fits) {
    return std::find_if(std::begin(kSpecifications), std::end(kSpecifications),
                        fits);
  };
  auto row = find([&](const auto& s) { return s.target == target.name; });
  // A capability without a row uses the newest older row.
  for (int c = target.compute_capability;
       row == std::end(kSpecifications) && c > 0; --c) {
    row = find([&](const auto& s) { return s.compute_capability == c; });
  }
  FUSOR_CHECK(row != std::end(kSpecifications), kUsage,
              "target {}: compute capability {} has no cuDNN plans; expected "
              "80 or newer",
              target.name, target.compute_capability);
  return *row;
}

template <typename Value>
CudnnDescriptor Describe(cudnnBackendAttributeName_t name, const Value& value) {
  CudnnDescriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.Set(name, value);
  device.Finalize();
  return device;
}

}  // namespace

CudnnDescriptor DescribeDevice(const std::string& json) {
  return Describe(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, json);
}

CudnnDescriptor DescribeDevice(int ordinal) {
  return Describe(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, int32_t{ordinal});
}

CudnnDescriptor DescribeDevice(cudnnHandle_t handle) {
  return Describe(CUDNN_ATTR_DEVICEPROP_HANDLE, handle);
}

std::string DevicePropertiesJson(const ir::Target& target) {
  const Specification& s = Find(target);
  return fmt::format(
      R"({{"cudaDeviceId":0,"deviceVer":{},"driverVer":13000,)"
      R"("totalGlobalMem":{},"maxGridSize":[2147483647,65535,65535],)"
      R"("maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
      R"("multiProcessorCount":{},"warpSize":32,)"
      R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":{},)"
      R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,)"
      R"("maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,)"
      R"("pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,)"
      R"("smClockRateKHz":{},"memClockRateKHz":{},"l2CacheSize":{},)"
      R"("deviceName":"{}"}})",
      target.compute_capability * 10, s.memory_bytes, target.threads,
      s.shared_bytes, s.clock_khz, s.memory_clock_khz, target.l2_bytes, s.name);
}

}  // namespace fusor::cuda
