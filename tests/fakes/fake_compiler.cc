#include "tests/fakes/fake_compiler.h"

#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/hash.h"

namespace fusor::test {

using codegen::Kernel;
using codegen::LibraryCall;

std::vector<ir::LibraryCandidate> FakeCompiler::Candidates(
    const ir::Node& node) const {
  if (ir::LibraryOp(node).op().fusion != ir::FusionKind::kLibrary) {
    return {};
  }
  ir::LibraryCandidate plain;
  plain.name = plain.algorithm = plain.implementation = "plain";
  plain.operands.resize(node.num_inputs());
  plain.results.resize(node.num_outputs());
  if (node.op().layout == ir::LayoutRule::kOrdered) {
    for (size_t i = 0; i < node.num_inputs(); ++i) {
      plain.operands[i] = node.input(i)->type().layout;
    }
    plain.results[0] = node.output()->type().layout;
  }
  return {plain};
}

std::string FakeCompiler::CompileKernel(const Kernel& kernel) const {
  ++compiled;
  return "code of " + Print(kernel, true);
}

void FakeCompiler::PrepareCall(LibraryCall& call) const {
  call.implementation = "fake_" + std::string(call.op_name());
  const uint64_t hash = HashBytes(call.op_name(), call.operands.size());
  if (hash % 3 == 0)
    call.workspace_bytes = static_cast<int64_t>(hash % 999) + 1;
  const bool elementwise =
      ir::GetOp(call.op).fusion == ir::FusionKind::kElementwise;
  for (size_t i = 0; i < call.operands.size() && elementwise; ++i) {
    if (call.operands[i] == call.results[0]) {
      call.in_place.push_back(
          {static_cast<int>(i), static_cast<int>(call.operands.size())});
    }
  }
}

}  // namespace fusor::test
