#include "runtime/cuda/driver.h"

#include "codegen/cuda/dynamic_library.h"
#include "ir/support/error.h"

// Expands names that cuda.h defines as macros, e.g. cuMemAlloc as
// cuMemAlloc_v2. CUDA 13's header has versions that drivers for CUDA 12 lack,
// with the same arguments: cuEventElapsedTime_v2.
#define FUSOR_TEXT(name) #name
#define FUSOR_SYMBOL(name) FUSOR_TEXT(name)

namespace fusor::cuda {
namespace {

Driver Open() {
  const Library& library = DriverLibrary();
  FUSOR_CHECK(library.found(), kDevice, "CUDA driver: {}", library.problem());
  const std::string too_old = DriverTooOld(kLeastCuda);
  FUSOR_CHECK(too_old.empty(), kDevice, "CUDA: {}", too_old);
  Driver driver;
#define FUSOR_DRIVER_FIND(function)                                           \
  driver.function =                                                           \
      library.Find<decltype(driver.function)>(FUSOR_SYMBOL(function));        \
  if (driver.function == nullptr) {                                           \
    driver.function = library.Find<decltype(driver.function)>(#function);     \
  }                                                                           \
  FUSOR_CHECK(driver.function != nullptr, kDevice,                            \
              "CUDA driver: {} has no {}: expected one for CUDA {} or newer", \
              library.name(), FUSOR_SYMBOL(function), kLeastCuda);
  FUSOR_DRIVER_FUNCTIONS(FUSOR_DRIVER_FIND)
#undef FUSOR_DRIVER_FIND
  driver.Check(driver.cuInit(0), "cuInit");
  return driver;
}

}  // namespace

void Driver::Check(CUresult result, const char* call) const {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) {
    name = "an unknown error";
  }
  if (cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) {
    text = "the driver does not say what it is";
  }
  FUSOR_CHECK(result != CUDA_ERROR_OUT_OF_MEMORY, kOutOfMemory,
              "CUDA: {}: {} ({})", call, name, text);
  FUSOR_CHECK(false, kDevice, "CUDA: {}: {} ({})", call, name, text);
}

const Driver& LoadDriver() {
  static const Driver driver = Open();
  return driver;
}

}  // namespace fusor::cuda
