#pragma once

#include <atomic>

#include "codegen/target_compiler.h"

namespace fusor::test {

// Compiles every op to text for a target. Its library runs ops in row-major
// layouts, and matmuls in any order of their dimensions. Nothing runs.
class FakeCompiler : public codegen::TargetCompiler {
 public:
  explicit FakeCompiler(const std::string& target = "cpu-avx2")
      : target_(ir::FindTarget(target)) {}
  const ir::Target& target() const override { return target_; }
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override;
  std::string CompileKernel(const codegen::Kernel& kernel) const override;
  codegen::CodegenFingerprint Codegen() const override { return facts; }
  // Adds a workspace to some calls, and lets elementwise ops work in place.
  void PrepareCall(codegen::LibraryCall& call) const override;
  std::vector<codegen::KernelArtifact> KernelArtifacts(
      const codegen::Kernel& kernel) const override {
    return {{".code", "# " + KernelStamp(kernel) + "\n"}};
  }
  std::string CompileArtifact(const codegen::Kernel&, const std::string& text,
                              const std::string&) const override {
    return text;
  }
  std::string LibraryVersion() const override { return "none"; }

  codegen::CodegenFingerprint facts{"fake 1", "fake_cpu", "level=2", "r1"};
  mutable std::atomic<int> compiled = 0;  // calls of CompileKernel

 private:
  ir::Target target_;
};

}  // namespace fusor::test
