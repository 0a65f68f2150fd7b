// The plug-in "cuda" of FakeCudaBackend, so that the program runs on it:
// FUSOR_BACKEND_DIR names its folder.

#include <memory>

#include "runtime/backend/build_id.h"
#include "tests/fakes/fake_cuda_backend.h"

namespace fusor::test {
namespace {

std::unique_ptr<runtime::Backend> Create() {
  return std::make_unique<FakeCudaBackend>();
}

}  // namespace
}  // namespace fusor::test

extern "C" __attribute__((visibility("default"))) fusor::runtime::BackendEntry
FusorBackendEntry() noexcept {
  return {fusor::runtime::kBackendAbiVersion, fusor::runtime::kBuildId,
          fusor::test::Create};
}
