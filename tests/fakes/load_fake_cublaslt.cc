#include <dlfcn.h>

#include <stdexcept>

#include "tests/fakes/fake_cublaslt.h"
#include "tests/fakes/fake_driver.h"

namespace fusor::test {

// dlopen returns a library of this name that is already open.
FakeCublaslt& LoadFakeCublaslt() {
  static FakeCublaslt* const fake = [] {
    LoadFakeDriver();
    void* library = dlopen(FUSOR_FAKE_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    const auto get = reinterpret_cast<FakeCublaslt* (*)()>(
        dlsym(library, "FusorFakeCublaslt"));
    if (get == nullptr) throw std::runtime_error(dlerror());
    return get();
  }();
  *fake = {};
  return *fake;
}

}  // namespace fusor::test
