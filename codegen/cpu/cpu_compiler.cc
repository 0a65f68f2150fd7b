#include "codegen/cpu/cpu_compiler.h"

#include "codegen/cpu/host.h"
#include "codegen/cpu/library_plan.h"

namespace fusor::cpu {

CpuCompiler::CpuCompiler(ir::Target target)
    : target_(std::move(target)), codegen_(target_.name) {}

// oneDNN's choices and workspaces depend on the number of threads available to
// the calling thread.
std::vector<ir::LibraryCandidate> CpuCompiler::Candidates(
    const ir::Node& node) const {
  const ThreadCount count(target_.threads);
  return LibraryCandidates(node, target_);
}

std::string CpuCompiler::CompileKernel(const codegen::Kernel& kernel) const {
  return codegen_.CompileObject(kernel);
}

void CpuCompiler::PrepareCall(codegen::LibraryCall& call) const {
  const ThreadCount count(target_.threads);
  call.implementation.clear();
  const LibraryPlan plan = PlanLibraryCall(call, target_.amx);
  call.implementation = plan.implementation;
  call.workspace_bytes = plan.workspace_bytes;
}

std::vector<codegen::KernelArtifact> CpuCompiler::KernelArtifacts(
    const codegen::Kernel& kernel) const {
  LlvmText text = codegen_.CompileText(kernel);
  return {{".ll", std::move(text.ir)}, {".s", std::move(text.assembly)}};
}

std::string CpuCompiler::CompileArtifact(const codegen::Kernel& kernel,
                                         const std::string& text,
                                         const std::string& source) const {
  return codegen_.CompileEdited(kernel, text, source);
}

std::string CpuCompiler::LibraryVersion() const { return OneDnnVersion(); }

}  // namespace fusor::cpu
