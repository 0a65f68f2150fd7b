#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/backend/backend.h"
#include "tests/runtime/cuda/stand_in_driver.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/emulated_device.h"

namespace fusor::test {

// What plans are made with: matrix products as the CUDA backend describes them;
// cuDNN must not meet the stand-in driver.
std::unique_ptr<codegen::TargetCompiler> StandInPlanner();

// The CUDA device on the stand-in driver, with kernels' text as machine code,
// matrix products by the stand-in for cuBLASLt, and other library calls by the
// interpreter, as functions of the host in the stream.
class StandInBackend : public runtime::Backend {
 public:
  explicit StandInBackend(const StandInOptions& options = {});
  StandIn& driver() { return driver_; }

  std::string name() const override { return "stand-in"; }
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
  StandIn& driver_;
  EmulatedBackend texts_{{.compiler = StandInPlanner}};
};

}  // namespace fusor::test
