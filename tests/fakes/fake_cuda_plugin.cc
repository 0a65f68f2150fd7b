// Exports FakeCudaBackend as the plug-in "cuda". Set FUSOR_BACKEND_DIR to its
// folder to run the program on it.

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
