// On one rank a sum over ranks is its operand, and so is what ranks gather.

#include "ir/builder.h"
#include "ir/support/error.h"
#include "passes/collective.h"
#include "passes/passes.h"

namespace fusor::passes {

using ir::Value;

bool DropCollectives(ir::Graph& graph, PassContext& context) {
  if (context.options().world_size > 1) return false;
  std::vector<ir::Node*> collectives;
  for (const auto& node : graph.nodes()) {
    if (IsCollective(*node)) collectives.push_back(node.get());
  }
  for (ir::Node* node : collectives) {
    ir::Builder b(graph, node);
    b.Inherit(node->location());
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      Value* operand = node->input(i);
      const ir::TensorType& type = node->output(i)->type();
      FUSOR_CHECK(type.num_elements() == operand->type().num_elements(), kGraph,
                  "{}{}: of several ranks, expected one", node->op_name(),
                  ir::AtLocation(node->location()));
      if (type.shape != operand->type().shape) {
        operand = b.Reshape(operand, type.shape);
      }
      graph.ReplaceAllUses(node->output(i), operand);
    }
  }
  graph.EraseAll(collectives);
  return !collectives.empty();
}

}  // namespace fusor::passes
