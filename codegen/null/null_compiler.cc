#include "codegen/null/null_compiler.h"

#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/error.h"

namespace fusor::null {

std::vector<ir::LibraryCandidate> NullCompiler::Candidates(
    const ir::Node& node) const {
  if (ir::LibraryOp(node).op().fusion != ir::FusionKind::kLibrary) return {};
  ir::LibraryCandidate candidate;
  candidate.name = candidate.algorithm = "direct";
  candidate.implementation = "null";
  candidate.operands.resize(node.num_inputs());
  candidate.results.resize(node.num_outputs());
  return {candidate};
}

std::string NullCompiler::CompileKernel(const codegen::Kernel& kernel) const {
  return Print(kernel, true);
}

codegen::CodegenFingerprint NullCompiler::Codegen() const {
  return {.compiler = "null", .device = "", .options = "", .fusor = "r1"};
}

void NullCompiler::PrepareCall(codegen::LibraryCall& call) const {
  call.implementation = "null";
}

std::string NullCompiler::CompileArtifact(const codegen::Kernel& kernel,
                                          const std::string&,
                                          const std::string& source) const {
  FUSOR_CHECK(false, kUsage,
              "{}: backend null compiles nothing in place of kernel {}", source,
              kernel.name);
}

}  // namespace fusor::null
