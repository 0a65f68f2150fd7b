#include "runtime/cuda/driver.h"

#include "codegen/cuda/dynamic_library.h"
#include "ir/support/error.h"

// Expands names that cuda.h defines as macros, e.g. cuMemAlloc as
// cuMemAlloc_v2.
#define FUSOR_TEXT(name) #name
#define FUSOR_SYMBOL(name) FUSOR_TEXT(name)

namespace fusor::cuda {
namespace {

Driver Open() {
  const Library library({"libcuda.so.1"});
  FUSOR_CHECK(library.found(), kDevice, "CUDA driver: {}", library.problem());
  Driver driver;
#define FUSOR_DRIVER_FIND(function)                                           \
  driver.function =                                                           \
      library.Find<decltype(driver.function)>(FUSOR_SYMBOL(function));        \
  FUSOR_CHECK(driver.function != nullptr, kDevice,                            \
              "CUDA driver: {} has no {}: expected one for CUDA {} or newer", \
              library.name(), FUSOR_SYMBOL(function),                         \
              kLeastDriverVersion / 1000);
  FUSOR_DRIVER_FUNCTIONS(FUSOR_DRIVER_FIND)
#undef FUSOR_DRIVER_FIND
  driver.Check(driver.cuInit(0), "cuInit");
  int version = 0;
  driver.Check(driver.cuDriverGetVersion(&version), "cuDriverGetVersion");
  FUSOR_CHECK(version >= kLeastDriverVersion, kDevice,
              "CUDA driver: it is one for CUDA {}.{}, expected {}.{} or newer",
              version / 1000, version % 1000 / 10, kLeastDriverVersion / 1000,
              kLeastDriverVersion % 1000 / 10);
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
