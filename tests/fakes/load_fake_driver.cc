#include <dlfcn.h>
#include <stdlib.h>

#include <stdexcept>

#include "tests/fakes/fake_driver.h"

namespace fusor::test {

// dlopen returns a library of this name that is already open.
FakeDriver& LoadFakeDriver() {
  static FakeDriver* const fake = [] {
    unsetenv("FUSOR_CUDA_DIR");  // its libraries would take precedence over the
                                 // fakes
    void* library = dlopen(FUSOR_FAKE_DRIVER, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    const auto get =
        reinterpret_cast<FakeDriver* (*)()>(dlsym(library, "FusorFakeDriver"));
    if (get == nullptr) throw std::runtime_error(dlerror());
    return get();
  }();
  fake->Reset({});
  return *fake;
}

}  // namespace fusor::test
