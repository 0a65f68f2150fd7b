#include <dlfcn.h>

#include <stdexcept>

#include "tests/runtime/cuda/stand_in_driver.h"

namespace fusor::test {

// A library that is open already is what dlopen finds under its name.
StandIn& LoadStandIn() {
  static StandIn* const stand_in = [] {
    void* library = dlopen(FUSOR_STAND_IN, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    const auto get =
        reinterpret_cast<StandIn* (*)()>(dlsym(library, "FusorStandIn"));
    if (get == nullptr) throw std::runtime_error(dlerror());
    return get();
  }();
  stand_in->Reset({});
  return *stand_in;
}

}  // namespace fusor::test
