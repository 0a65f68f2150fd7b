#pragma once

#include "codegen/cpu/llvm_compiler.h"
#include "codegen/target_compiler.h"

namespace fusor::cpu {

// The CPU as a compile target: LLVM for kernels, oneDNN for library ops. oneDNN
// answers for the instruction set of this machine, whatever the target's.
class CpuCompiler : public codegen::TargetCompiler {
 public:
  // REQUIRES: !target.simt.
  explicit CpuCompiler(ir::Target target);

  const ir::Target& target() const override { return target_; }
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override;
  std::string CompileKernel(const codegen::Kernel& kernel) const override;
  codegen::CodegenFingerprint Codegen() const override {
    return codegen_.facts();
  }
  void PrepareCall(codegen::LibraryCall& call) const override;
  std::vector<codegen::KernelArtifact> KernelArtifacts(
      const codegen::Kernel& kernel) const override;
  std::string CompileArtifact(const codegen::Kernel& kernel,
                              const std::string& text,
                              const std::string& source) const override;
  std::string LibraryVersion() const override;

 private:
  ir::Target target_;
  LlvmCompiler codegen_;
};

}  // namespace fusor::cpu
