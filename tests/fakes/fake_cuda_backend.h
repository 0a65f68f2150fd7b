#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/backend/backend.h"
#include "tests/fakes/emulated_device.h"
#include "tests/fakes/fake_driver.h"
#include "tests/testing/cuda_planner.h"

namespace fusor::test {

// Returns a compiler whose matmuls are described as by the CUDA backend. It
// does not load cuDNN, which must not use the fake driver.
std::unique_ptr<codegen::TargetCompiler> FakePlanner();

// The CUDA device on the fake driver, with the text of kernels as machine code.
// The fake cuBLASLt computes matmuls. Other library calls are interpreted in
// host functions of the stream.
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
