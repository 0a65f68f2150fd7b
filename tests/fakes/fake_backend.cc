// A plug-in without devices. It is built several times with different macros,
// to test what the loader rejects:
//   FAKE_ABI       its ABI version
//   FAKE_BUILD_ID  its build id
//   FAKE_ENTRY     the name of its entry function
//   FAKE_THROWS    its creation fails

#include "ir/support/error.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/build_id.h"

namespace fusor::runtime {
namespace {

class FakeBackend : public Backend {
 public:
  std::string name() const override { return "fake"; }
  int device_count() const override { return 0; }
  std::vector<std::string> Diagnose() const override { return {"fake"}; }
  std::unique_ptr<Device> OpenDevice(int, const BackendOptions&) override {
    return nullptr;
  }
  std::unique_ptr<codegen::TargetCompiler> CreateCompiler(
      const std::string&, const BackendOptions&) override {
    return nullptr;
  }
};

std::unique_ptr<Backend> Create() {
  FUSOR_CHECK(!FAKE_THROWS, kDevice, "fake: no such machine");
  return std::make_unique<FakeBackend>();
}

}  // namespace
}  // namespace fusor::runtime

extern "C" __attribute__((visibility("default"))) fusor::runtime::BackendEntry
FAKE_ENTRY() noexcept {
  return {FAKE_ABI, FAKE_BUILD_ID, fusor::runtime::Create};
}
