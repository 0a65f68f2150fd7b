#include "passes/fusion/duplicate_free_nodes.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "passes/fusion/iteration_domain.h"

namespace fusor::passes {

using ir::Node;

// Makes one copy per use beyond the first. Visits results before their
// operands, so that chains of free nodes are copied whole.
bool DuplicateFreeNodes(ir::Graph& graph) {
  std::unordered_set<const ir::Value*> outputs;
  for (const ir::Output& output : graph.outputs()) outputs.insert(output.value);
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes()) nodes.push_back(node.get());
  std::vector<Node*> order;  // new node order, last node first
  for (size_t i = nodes.size(); i-- > 0;) {
    Node* node = nodes[i];
    order.push_back(node);
    if (!IsFree(*node)) continue;
    const std::vector<ir::Use> uses = node->output()->uses();
    const size_t first_copy = order.size();
    for (size_t u = outputs.contains(node->output()) ? 0 : 1; u < uses.size();
         ++u) {
      Node* copy = graph.AddNode(node->kind(), node->inputs(), node->attrs(),
                                 node->location());
      copy->output()->set_type(node->output()->type());
      uses[u].node->SetInput(uses[u].operand, copy->output());
      order.push_back(copy);
    }
    std::reverse(order.begin() + static_cast<int64_t>(first_copy), order.end());
  }
  if (order.size() == nodes.size()) return false;
  std::reverse(order.begin(), order.end());
  graph.Reorder(order);
  return true;
}

}  // namespace fusor::passes
