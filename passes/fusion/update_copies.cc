#include "passes/fusion/update_copies.h"

#include <algorithm>

#include "ir/op.h"
#include "ir/weight_copy.h"

namespace fusor::passes {

using ir::Node;
using ir::Value;

WeightCopies::WeightCopies(const ir::Graph& graph) {
  for (const ir::Output& output : graph.outputs()) {
    if (output.alias >= 0 &&
        graph.inputs()[output.alias].role == ir::InputRole::kWeightCopy) {
      kept_.insert(output.value);
    }
  }
}

std::vector<Node*> WeightCopies::Of(const Node& update) const {
  std::vector<Node*> copies;
  for (size_t i = 0; i < update.num_outputs(); ++i) {
    Collect(*update.output(i), copies);
  }
  return copies;
}

bool WeightCopies::IsForState(const Node& node) const {
  if (node.kind() != ir::OpKind::kCopy) return false;
  const std::vector<ir::Use>& uses = node.output()->uses();
  if (IsKept(node.output())) return uses.empty();
  return !uses.empty() &&
         std::all_of(uses.begin(), uses.end(),
                     [&](const ir::Use& use) { return IsForState(*use.node); });
}

void WeightCopies::Collect(const Value& value,
                           std::vector<Node*>& copies) const {
  for (const ir::Use& use : value.uses()) {
    if (!IsForState(*use.node)) continue;
    copies.push_back(use.node);
    Collect(*use.node->output(), copies);
  }
}

UpdateCopies AddCopies(
    const WeightCopies& copies, const std::vector<Node*>& members,
    const std::vector<std::unordered_map<const Value*, Value*>>& maps,
    ir::Graph& body) {
  UpdateCopies added;
  for (size_t m = 0; m < members.size(); ++m) {
    std::unordered_map<const Value*, Value*> map;
    for (size_t r = 0; r < members[m]->num_outputs(); ++r) {
      map[members[m]->output(r)] =
          maps[m].at(members[m]->body()->outputs()[r].value);
    }
    for (Node* node : copies.Of(*members[m])) {
      Node* copy = body.AddNode(node->kind(), {map.at(node->input(0))},
                                node->attrs(), node->location());
      body.Rename(copy->output(), node->output()->name());
      map[node->output()] = copy->output();
      added.nodes.push_back(node);
      if (!copies.IsKept(node->output())) continue;
      added.kept.push_back(node->output());
      body.AddOutput(copy->output(), node->output()->name());
    }
  }
  return added;
}

}  // namespace fusor::passes
