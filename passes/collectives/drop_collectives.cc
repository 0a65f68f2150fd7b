// On one rank the results of collectives are their operands.

#include "ir/builder.h"
#include "ir/support/error.h"
#include "passes/collectives/collective.h"
#include "passes/passes.h"

namespace fusor::passes {

using ir::Value;

bool DropCollectives(ir::Graph& graph, PassContext& context) {
  if (context.options().world_size > 1) return false;
  std::vector<ir::Node*> collectives;
  for (const auto& node : graph.nodes()) {
    if (node->HasTrait(ir::OpTrait::kCollective))
      collectives.push_back(node.get());
  }
  for (ir::Node* node : collectives) {
    ir::Builder b(graph, node);
    b.Inherit(node->location());
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      Value* operand = node->input(i);
      const ir::TensorType& type = node->output(i)->type();
      const int64_t elements = operand->type().num_elements();
      const int64_t filling = type.num_elements() - elements;
      const bool one_part = node->kind() == ir::OpKind::kReduceScatter &&
                            node->attrs().Int("parts") == 1;
      FUSOR_CHECK(filling == 0 || one_part, kGraph,
                  "{}{}: expected a collective of one rank, got several",
                  node->op_name(), ir::AtLocation(node->location()));
      if (filling > 0) {
        operand = b.Reshape(operand, {elements});
        operand = b.Pad(operand, {0}, {filling}, {0}, 0);
      } else if (type.shape != operand->type().shape) {
        operand = b.Reshape(operand, type.shape);
      }
      graph.ReplaceAllUses(node->output(i), operand);
    }
  }
  graph.EraseAll(collectives);
  return !collectives.empty();
}

}  // namespace fusor::passes
