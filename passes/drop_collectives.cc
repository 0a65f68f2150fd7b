// On one rank a sum over ranks is its operand, and so is what ranks gather.

#include "ir/builder.h"
#include "ir/support/error.h"
#include "passes/collective.h"
#include "passes/passes.h"

namespace fusor::passes {

bool DropCollectives(ir::Graph& graph, PassContext& context) {
  if (context.options().world_size > 1) return false;
  std::vector<ir::Node*> collectives;
  for (const auto& node : graph.nodes()) {
    if (IsCollective(*node)) collectives.push_back(node.get());
  }
  for (ir::Node* node : collectives) {
    if (!IsSumOverRanks(*node)) {
      FUSOR_CHECK(node->attrs().Int("ranks") == 1, kGraph,
                  "{}{}: of {} ranks, expected one", node->op_name(),
                  ir::AtLocation(node->location()), node->attrs().Int("ranks"));
      ir::Builder b(graph, node);
      b.Inherit(node->location());
      graph.ReplaceAllUses(
          node->output(),
          b.Reshape(node->input(0), node->output()->type().shape));
      continue;
    }
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      graph.ReplaceAllUses(node->output(i), node->input(i));
    }
  }
  graph.EraseAll(collectives);
  return !collectives.empty();
}

}  // namespace fusor::passes
