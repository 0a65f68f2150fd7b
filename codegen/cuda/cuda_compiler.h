#pragma once

#include <memory>
#include <optional>
#include <string>

#include "codegen/cuda/conv_planner.h"
#include "codegen/cuda/nvrtc.h"
#include "codegen/target_compiler.h"

namespace fusor::cuda {

// A GPU as a compile target, without one: NVRTC makes a cubin of the text that
// codegen prints of a kernel, cuDNN chooses and plans convolutions, and matrix
// products are described for cuBLASLt; pooling and copies between layouts are
// generated kernels. Activations and filters are channels-last. Convolutions
// where there is no cuDNN, and other library ops, are "unchosen".
class CudaCompiler : public codegen::TargetCompiler {
 public:
  // `device`: the number of the GPU that convolutions are planned for, of this
  // target; none where it is not there, which the target describes then.
  // `warning` is told of warnings of NVRTC's. REQUIRES: target.simt. Throws
  // what NvrtcCompiler throws.
  CudaCompiler(ir::Target target, std::optional<int> device,
               codegen::WarningHandler warning);

  const ir::Target& target() const override { return target_; }
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override;
  std::string CompileKernel(const codegen::Kernel& kernel) const override;
  std::vector<codegen::EntryResources> Resources(
      const std::string& code) const override;
  codegen::CodegenFingerprint Codegen() const override;
  void PrepareCall(codegen::LibraryCall& call) const override;
  // ".cu", ".ptx", and ".resources" with the registers and bytes of stack that
  // each entry takes.
  std::vector<codegen::KernelArtifact> KernelArtifacts(
      const codegen::Kernel& kernel) const override;
  std::string CompileArtifact(const codegen::Kernel& kernel,
                              const std::string& text,
                              const std::string& source) const override;
  std::string LibraryVersion() const override;

 private:
  // `name` of the kernel.
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
