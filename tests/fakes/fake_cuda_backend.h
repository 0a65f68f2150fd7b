#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/backend/backend.h"
#include "tests/fakes/emulated_device.h"
#include "tests/fakes/fake_driver.h"
#include "tests/testing/cuda_planner.h"

namespace fusor::test {

// What plans are made with: matrix products as the CUDA backend describes them;
// cuDNN must not meet the fake driver.
std::unique_ptr<codegen::TargetCompiler> FakePlanner();

// The CUDA device on the fake driver, with kernels' text as machine code,
// matrix products by the fake cuBLASLt, and other library calls by the
// interpreter, as functions of the host in the stream.
class FakeCudaBackend : public runtime::Backend {
 public:
  explicit FakeCudaBackend(const FakeBackendOptions& options = {});
  FakeDriver& driver() { return driver_; }

  std::string name() const override { return "fake"; }
  int device_count() const override { return 1; }
  std::vector<std::string> Diagnose() const override { return {}; }
  std::unique_ptr<runtime::Device> OpenDevice(
      int ordinal, const runtime::BackendOptions& options) override;
  std::unique_ptr<codegen::TargetCompiler> CreateCompiler(
      const std::string& target,
      const runtime::BackendOptions& options) override {
    return texts_.CreateCompiler(target, options);
  }

 private:
  FakeDriver& driver_;
  EmulatedBackend texts_{{.compiler = FakePlanner}};
};

}  // namespace fusor::test
