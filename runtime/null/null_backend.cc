// The null plug-in's entry.

#include "codegen/null/null_compiler.h"
#include "ir/support/error.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/build_id.h"
#include "runtime/distributed/tcp_store.h"
#include "runtime/null/null_device.h"

namespace fusor::null {
namespace {

NullLog& Log() {
  static NullLog log;
  return log;
}

class NullBackend : public runtime::Backend {
 public:
  std::string name() const override { return "null"; }
  int device_count() const override { return 1; }
  std::vector<std::string> Diagnose() const override {
    return {"records what it is asked to do and computes nothing"};
  }
  std::unique_ptr<runtime::Device> OpenDevice(
      int ordinal, const runtime::BackendOptions&) override {
    FUSOR_CHECK(ordinal == 0, kDevice, "null device {}: there is only 0",
                ordinal);
    return OpenNullDevice(Log());
  }
  std::unique_ptr<codegen::TargetCompiler> CreateCompiler(
      const std::string& target, const runtime::BackendOptions&) override {
    // The default is fixed, so that tests do not depend on the machine.
    return std::make_unique<NullCompiler>(
        ir::FindTarget(target.empty() ? "cpu-avx2" : target));
  }
  std::unique_ptr<runtime::Communicator> Connect(
      runtime::TcpStore& store, const runtime::CommunicatorOptions&) override {
    return std::make_unique<NullCommunicator>(Log(), store.rank(),
                                              store.world_size());
  }
};

std::unique_ptr<runtime::Backend> Create() {
  return std::make_unique<NullBackend>();
}

}  // namespace
}  // namespace fusor::null

extern "C" fusor::runtime::BackendEntry FusorBackendEntry() noexcept {
  return {fusor::runtime::kBackendAbiVersion, fusor::runtime::kBuildId,
          fusor::null::Create};
}

extern "C" fusor::null::NullLog* FusorNullLog() noexcept {
  return &fusor::null::Log();
}
