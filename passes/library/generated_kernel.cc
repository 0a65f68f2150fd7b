#include "passes/library/generated_kernel.h"

#include "ir/op.h"

namespace fusor::passes {

namespace {

// Excludes ops that combine many operand elements per result: libraries run
// those.
bool MayBeGenerated(const ir::Node& node) {
  return node.op().fusion == ir::FusionKind::kLibrary &&
         node.op().macs == nullptr;
}

}  // namespace

bool IsGenerated(const ir::Node& node, const ir::TargetQueries& target) {
  if (!MayBeGenerated(node)) return false;
  const auto candidates = target.Candidates(node);
  return !candidates.empty() &&
         candidates[0].algorithm == ir::kGeneratedAlgorithm;
}

}  // namespace fusor::passes
