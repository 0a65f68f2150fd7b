#pragma once

#include <memory>
#include <optional>
#include <string>

#include "codegen/cuda/conv_planner.h"
#include "codegen/cuda/nvrtc.h"
#include "codegen/target_compiler.h"

namespace fusor::cuda {

// A GPU as a compile target; no GPU need be present. NVRTC compiles the CUDA
// C++ printed for a kernel to a cubin. cuDNN chooses and plans convolutions.
// Matmuls are described for cuBLASLt. Pooling and copies between layouts are
// generated kernels. Activations and filters are channels-last. Convolutions
// without cuDNN, and other library ops, get the implementation "unchosen".
class CudaCompiler : public codegen::TargetCompiler {
 public:
  // `device`: ordinal of the GPU, of this target, that convolutions are planned
  // for; its context must be current. Without it, they are planned for the GPU
  // that `target` describes.
  // `warning` receives NVRTC's warnings. REQUIRES: target.simt. Throws what
  // NvrtcCompiler throws.
  CudaCompiler(ir::Target target, std::optional<int> device,
               codegen::WarningHandler warning);

  // Throws kDevice unless this machine's driver runs the compiler's code.
  void CheckDriver() const;

  const ir::Target& target() const override { return target_; }
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override;
  std::string CompileKernel(const codegen::Kernel& kernel) const override;
  std::vector<codegen::EntryResources> Resources(
      const std::string& code) const override;
  codegen::CodegenFingerprint Codegen() const override;
  void PrepareCall(codegen::LibraryCall& call) const override;
  // Returns ".cu", ".ptx" and, unless the code is PTX, ".sass" if there is an
  // nvdisasm, and ".resources" with the registers and bytes of stack of each
  // entry.
  std::vector<codegen::KernelArtifact> KernelArtifacts(
      const codegen::Kernel& kernel) const override;
  std::string CompileArtifact(const codegen::Kernel& kernel,
                              const std::string& text,
                              const std::string& source) const override;
  std::string LibraryVersion() const override;

 private:
  std::string TextOf(const codegen::Kernel& kernel) const;
  // `name`: of the kernel, for warnings.
  NvrtcCompiler::Output CompileText(const std::string& name,
                                    const std::string& text,
                                    const std::string& source,
                                    ErrorCode code) const;

  ir::Target target_;
  NvrtcCompiler nvrtc_;
  codegen::WarningHandler warning_;
  std::unique_ptr<ConvPlanner> planner_;  // null without cuDNN
};

}  // namespace fusor::cuda
