// Wraps each op that the target's library leaves to a generated kernel
// (kGeneratedAlgorithm) in a fusion. Runs last, because FuseUpdates still moves
// copies into its launches.

#include <vector>

#include "passes/fusion/outline.h"
#include "passes/library/candidate.h"
#include "passes/passes.h"

namespace fusor::passes {

bool GenerateKernels(ir::Graph& graph, PassContext& context) {
  std::vector<OutlineRequest> requests;
  for (const auto& node : graph.nodes()) {
    if (!IsGenerated(*node, context.target())) continue;
    requests.push_back({.members = {node.get()},
                        .location = node->location(),
                        .separate_operands = true});
  }
  if (requests.empty()) return false;
  Outline(graph, requests);
  context.counters()["generated_kernels"] +=
      static_cast<int64_t>(requests.size());
  return true;
}

}  // namespace fusor::passes
