#include "passes/fusion/separate_kernel.h"

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "passes/fusion/duplicate_free_nodes.h"
#include "passes/simplify/dead_code.h"

namespace fusor::passes {

using ir::Graph;
using ir::Node;
using ir::Value;

void SeparateKernel(Graph& graph, Node* node, PassContext& context,
                    const std::function<void(Graph& body, Node* node)>& lower) {
  auto body = std::make_unique<Graph>("fusion");
  std::unordered_map<const Value*, Value*> inside;
  std::vector<Value*> inputs;
  std::vector<Value*> operands;  // by body input
  for (Value* input : node->inputs()) {
    auto [at, added] = inside.emplace(input, nullptr);
    if (added) {
      at->second =
          body->AddInput(input->type(), ir::InputRole::kData, input->name());
      operands.push_back(input);
    }
    inputs.push_back(at->second);
  }
  Node* alone =
      body->AddNode(node->kind(), inputs, node->attrs(), node->location());
  std::vector<Value*> results;
  for (size_t i = 0; i < node->num_outputs(); ++i) {
    alone->output(i)->set_type(node->output(i)->type());
    if (graph.IsUnused(node->output(i))) continue;
    results.push_back(node->output(i));
    body->AddOutput(alone->output(i), node->output(i)->name());
  }
  lower(*body, alone);
  Simplify(*body, context);
  EraseDeadNodes(*body);
  // A result that equals an operand, e.g. the gradient of an add, is replaced
  // by that operand: the kernel need not store it again.
  for (size_t i = results.size(); i-- > 0;) {
    const Value* value = body->outputs()[i].value;
    if (value->producer() != nullptr) continue;
    graph.ReplaceAllUses(results[i],
                         operands[static_cast<size_t>(value->index())]);
    const auto at = static_cast<std::ptrdiff_t>(i);
    body->mutable_outputs().erase(body->mutable_outputs().begin() + at);
    results.erase(results.begin() + at);
  }
  if (results.empty()) {
    graph.Erase(node);
    return;
  }
  DuplicateFreeNodes(*body);
  for (size_t i = operands.size(); i-- > 0;) {
    if (!body->IsUnused(body->input(i))) continue;
    body->EraseInput(i);
    operands.erase(operands.begin() + static_cast<int64_t>(i));
  }
  const bool eager = context.options().eager_rounding;
  Node* fusion = graph.AddNode(
      "fusion", operands, {{"rounding", std::string(eager ? "eager" : "fast")}},
      node->location(), node, std::move(body));
  std::vector<std::string> names;
  for (size_t i = 0; i < results.size(); ++i) {
    names.push_back(results[i]->name());
    graph.ReplaceAllUses(results[i], fusion->output(i));
  }
  graph.Erase(node);
  graph.RenameResults(fusion, std::move(names));
}

}  // namespace fusor::passes
