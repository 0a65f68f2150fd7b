#include "runtime/cuda/context.h"

#include <array>

#include "ir/support/environment.h"
#include "ir/support/error.h"
#include "runtime/cuda/diagnose.h"
#include "runtime/distributed/rank_environment.h"

namespace fusor::cuda {

int DeviceOfRank() {
  const int count = CountDevices();
  if (count <= 1) return 0;
  const runtime::RankEnvironment place =
      runtime::FindRankEnvironment(LauncherVariable);
  FUSOR_CHECK(place.local_rank < count, kDevice,
              "rank {}, number {} of this host: the driver offers {} devices, "
              "expected one for each of {} ranks",
              place.rank, place.local_rank, count, place.local_size);
  return place.local_rank;
}

Context::Context(int ordinal) : driver_(LoadDriver()) {
  int count = 0;
  driver_.Check(driver_.cuDeviceGetCount(&count), "cuDeviceGetCount");
  FUSOR_CHECK(ordinal >= 0 && ordinal < count, kDevice,
              "CUDA device {}: the driver offers {} devices", ordinal, count);
  driver_.Check(driver_.cuDeviceGet(&device_, ordinal), "cuDeviceGet");
  std::array<char, 256> name{};
  driver_.Check(driver_.cuDeviceGetName(name.data(),
                                        static_cast<int>(name.size()), device_),
                "cuDeviceGetName");
  name_ = name.data();
  compute_capability_ =
      10 * Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
      Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  multiprocessors_ = Attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  driver_.Check(driver_.cuDevicePrimaryCtxRetain(&context_, device_),
                "cuDevicePrimaryCtxRetain");
}

Context::~Context() {
  Driver::Ignore(driver_.cuDevicePrimaryCtxRelease(device_));
}

const Driver& Context::Enter() const {
  driver_.Check(driver_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
  return driver_;
}

const Driver& Context::EnterNoThrow() const noexcept {
  Driver::Ignore(driver_.cuCtxSetCurrent(context_));
  return driver_;
}

size_t Context::free_bytes() const {
  size_t free = 0;
  size_t total = 0;
  Enter().Check(driver_.cuMemGetInfo(&free, &total), "cuMemGetInfo");
  return free;
}

int Context::Attribute(CUdevice_attribute attribute) const {
  int value = 0;
  driver_.Check(driver_.cuDeviceGetAttribute(&value, attribute, device_),
                "cuDeviceGetAttribute");
  return value;
}

DriverEvent::DriverEvent(const Context& context, bool timing)
    : context_(context) {
  const Driver& driver = context.Enter();
  driver.Check(driver.cuEventCreate(&event_, timing ? CU_EVENT_DEFAULT
                                                    : CU_EVENT_DISABLE_TIMING),
               "cuEventCreate");
}

DriverEvent::~DriverEvent() {
  Driver::Ignore(context_.EnterNoThrow().cuEventDestroy(event_));
}

}  // namespace fusor::cuda
