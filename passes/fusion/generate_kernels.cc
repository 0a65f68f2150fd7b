// Wraps each op that the target's library leaves to a generated kernel
// (kGeneratedAlgorithm) in a fusion, and makes such a library fusion a fusion
// that is a kernel. Runs last, because FuseUpdates still moves copies into its
// launches.

#include <string>
#include <vector>

#include "ir/library_fusion.h"
#include "passes/fusion/outline.h"
#include "passes/library/candidate.h"
#include "passes/passes.h"

namespace fusor::passes {

bool GenerateKernels(ir::Graph& graph, PassContext& context) {
  std::vector<OutlineRequest> requests;
  int64_t generated = 0;
  for (const auto& node : graph.nodes()) {
    if (!IsGenerated(*node, context.target())) continue;
    ++generated;
    if (ir::IsLibraryFusion(*node)) {
      node->mutable_attrs().Set("kind", std::string("loop"));
      continue;
    }
    requests.push_back({.members = {node.get()},
                        .location = node->location(),
                        .separate_operands = true});
  }
  if (generated == 0) return false;
  Outline(graph, requests);
  context.counters()["generated_kernels"] += generated;
  return true;
}

}  // namespace fusor::passes
