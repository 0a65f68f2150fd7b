#pragma once

#include <string>
#include <vector>

#include "codegen/target_compiler.h"

namespace fusor::null {

// Compiles for any target to the kernel's own text; every library op has one
// row-major candidate and needs no workspace.
class NullCompiler : public codegen::TargetCompiler {
 public:
  explicit NullCompiler(ir::Target target) : target_(std::move(target)) {}

  const ir::Target& target() const override { return target_; }
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override;
  std::string CompileKernel(const codegen::Kernel& kernel) const override;
  codegen::CodegenFingerprint Codegen() const override;
  void PrepareCall(codegen::LibraryCall& call) const override;
  std::vector<codegen::KernelArtifact> KernelArtifacts(
      const codegen::Kernel&) const override {
    return {};
  }
  std::string CompileArtifact(const codegen::Kernel& kernel,
                              const std::string& text,
                              const std::string& source) const override;
  std::string LibraryVersion() const override { return "none"; }

 private:
  ir::Target target_;
};

}  // namespace fusor::null
