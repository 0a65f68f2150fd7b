#include <dlfcn.h>

#include <stdexcept>

#include "tests/runtime/cuda/stand_in_cublaslt.h"
#include "tests/runtime/cuda/stand_in_driver.h"

namespace fusor::test {

// A library that is open already is what dlopen finds under its name.
StandInCublaslt& LoadStandInCublaslt() {
  static StandInCublaslt* const stand_in = [] {
    LoadStandIn();
    void* library = dlopen(FUSOR_STAND_IN_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    const auto get = reinterpret_cast<StandInCublaslt* (*)()>(
        dlsym(library, "FusorStandInCublaslt"));
    if (get == nullptr) throw std::runtime_error(dlerror());
    return get();
  }();
  *stand_in = {};
  return *stand_in;
}

}  // namespace fusor::test
