#include "passes/fusion/outline.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "ir/op.h"
#include "passes/fusion/iteration_domain.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Use;
using ir::Value;

// Redirects the uses of the results to the fusion. Returns their names.
std::vector<std::string> Redirect(Graph& graph,
                                  const std::vector<Value*>& results,
                                  const Node& fusion) {
  std::vector<std::string> names;
  for (size_t i = 0; i < results.size(); ++i) {
    names.push_back(results[i]->name());
    graph.ReplaceAllUses(results[i], fusion.output(i));
  }
  return names;
}

class Outliner {
 public:
  Outliner(Graph& graph, std::span<const OutlineRequest> requests)
      : graph_(graph), requests_(requests) {
    for (const ir::Output& output : graph.outputs()) {
      outputs_.insert(output.value);
    }
    for (const auto& node : graph.nodes()) nodes_.push_back(node.get());
  }

  std::vector<Node*> Run() {
    for (const OutlineRequest& request : requests_) {
      FusionBody body = MakeBody(request);
      Node* fusion = AddFusion(request, body);
      outlined_.push_back({fusion, std::move(body.results)});
    }
    std::vector<std::vector<std::string>> names;
    for (const auto& [fusion, results] : outlined_) {
      names.push_back(fusion == nullptr ? std::vector<std::string>()
                                        : Redirect(graph_, results, *fusion));
    }
    const std::vector<Node*> order = Order();
    graph_.EraseAll({dead_.begin(), dead_.end()});
    graph_.SortTopologically(order);
    std::vector<Node*> fusions;
    for (size_t i = 0; i < outlined_.size(); ++i) {
      fusions.push_back(outlined_[i].fusion);
      if (fusions[i] == nullptr) continue;
      graph_.RenameResults(fusions[i], std::move(names[i]));
    }
    return fusions;
  }

 private:
  struct Outlined {
    Node* fusion;                 // null if it has no results
    std::vector<Value*> results;  // that it replaces
  };

  // Returns the results of the members that other nodes or the outputs read.
  std::vector<Value*> ResultsOf(const std::vector<Node*>& members) const {
    const std::unordered_set<const Node*> set(members.begin(), members.end());
    std::vector<Value*> results;
    for (const Node* node : members) {
      for (size_t i = 0; i < node->num_outputs(); ++i) {
        Value* value = node->output(i);
        const bool outside = std::any_of(
            value->uses().begin(), value->uses().end(),
            [&](const Use& use) { return !set.contains(use.node); });
        if (outside || outputs_.contains(value)) results.push_back(value);
      }
    }
    return results;
  }

  FusionBody MakeBody(const OutlineRequest& request) const {
    FusionBody body;
    std::unordered_map<const Value*, Value*> inside;
    for (const Node* node : request.members) {
      std::vector<Value*> inputs;
      for (Value* operand : node->inputs()) {
        auto [at, added] = inside.try_emplace(operand, nullptr);
        if (added || request.separate_operands) {
          at->second = body.AddInput(operand);
        }
        inputs.push_back(at->second);
      }
      const Node* copy = body.AddCopy(*node, std::move(inputs));
      for (size_t i = 0; i < node->num_outputs(); ++i) {
        if (!request.rewrite) {
          body.graph->Rename(copy->output(i), node->output(i)->name());
        }
        inside[node->output(i)] = copy->output(i);
      }
    }
    for (Value* result : request.results.empty() ? ResultsOf(request.members)
                                                 : request.results) {
      body.AddOutput(inside.at(result), result);
    }
    return body;
  }

  // Moves the graph out of `body`. Returns null if no results are left.
  Node* AddFusion(const OutlineRequest& request, FusionBody& body) {
    if (request.rewrite) {
      request.rewrite(*body.graph);
      ForwardOperands(body);
      DropUnusedOperands(body);
    }
    if (body.results.empty()) return nullptr;
    return graph_.AddNode(
        ir::OpKind::kFusion, body.operands,
        {{"rounding", std::string(request.eager_rounding ? "eager" : "fast")}},
        request.location, nullptr, std::move(body.graph));
  }

  // Replaces results that equal an operand, e.g. the gradient of an add, by
  // that operand: the kernel need not store it again.
  void ForwardOperands(FusionBody& body) {
    std::vector<ir::Output>& outputs = body.graph->mutable_outputs();
    for (size_t i = body.results.size(); i-- > 0;) {
      const Value* value = outputs[i].value;
      if (value->producer() != nullptr) continue;
      graph_.ReplaceAllUses(body.results[i],
                            body.operands[static_cast<size_t>(value->index())]);
      const auto at = static_cast<std::ptrdiff_t>(i);
      outputs.erase(outputs.begin() + at);
      body.results.erase(body.results.begin() + at);
    }
  }

  static void DropUnusedOperands(FusionBody& body) {
    for (size_t i = body.operands.size(); i-- > 0;) {
      if (!body.graph->IsUnused(body.graph->input(i))) continue;
      body.graph->EraseInput(i);
      body.operands.erase(body.operands.begin() +
                          static_cast<std::ptrdiff_t>(i));
    }
  }

  // Marks the members that nobody reads any more.
  void MarkDead(const OutlineRequest& request) {
    for (size_t m = request.members.size(); m-- > 0;) {
      Node* node = request.members[m];
      bool dead = true;
      for (size_t i = 0; dead && i < node->num_outputs(); ++i) {
        const std::vector<Use>& uses = node->output(i)->uses();
        dead = !graph_.IsOutput(node->output(i)) &&
               std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
                 return dead_.contains(use.node);
               });
      }
      if (dead) dead_.insert(node);
    }
  }

  // Returns the new order of the nodes that stay.
  std::vector<Node*> Order() {
    std::unordered_map<const Node*, Node*> fusion_at;
    for (size_t i = 0; i < requests_.size(); ++i) {
      MarkDead(requests_[i]);
      const Node* position = requests_[i].position;
      if (position == nullptr) position = requests_[i].members.back();
      if (outlined_[i].fusion == nullptr) continue;
      fusion_at.emplace(position, outlined_[i].fusion);
    }
    std::vector<Node*> order;
    for (Node* node : nodes_) {
      const auto fusion = fusion_at.find(node);
      if (fusion != fusion_at.end()) order.push_back(fusion->second);
      if (!dead_.contains(node)) order.push_back(node);
    }
    return order;
  }

  Graph& graph_;
  const std::span<const OutlineRequest> requests_;
  std::unordered_set<const Value*> outputs_;
  std::vector<Node*> nodes_;  // without the fusions
  std::vector<Outlined> outlined_;
  std::unordered_set<Node*> dead_;
};

}  // namespace

std::vector<Node*> DepthFirst(const std::vector<Node*>& nodes,
                              const std::unordered_set<const Value*>& results) {
  const std::unordered_set<const Node*> set(nodes.begin(), nodes.end());
  std::unordered_set<const Node*> visited;
  std::vector<Node*> order;
  std::vector<std::pair<Node*, size_t>> stack;
  for (Node* root : nodes) {
    if (!results.contains(root->output()) || !visited.insert(root).second) {
      continue;
    }
    stack.emplace_back(root, 0);
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next == node->num_inputs()) {
        order.push_back(node);
        stack.pop_back();
        continue;
      }
      Node* producer = node->input(next++)->producer();
      if (producer != nullptr && set.contains(producer) &&
          visited.insert(producer).second) {
        stack.emplace_back(producer, 0);
      }
    }
  }
  return order;
}

std::vector<Node*> Outline(Graph& graph,
                           std::span<const OutlineRequest> requests) {
  if (requests.empty()) return {};
  return Outliner(graph, requests).Run();
}

Value* FusionBody::AddInput(Value* operand) {
  operands.push_back(operand);
  return graph->AddInput(operand->type(), ir::InputRole::kData,
                         operand->name());
}

Node* FusionBody::AddCopy(const Node& node, std::vector<Value*> inputs) {
  Node* copy = graph->AddNode(node.kind(), std::move(inputs), node.attrs(),
                              node.location());
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    copy->output(i)->set_type(node.output(i)->type());
  }
  return copy;
}

void FusionBody::AddOutput(Value* value, Value* result) {
  graph->AddOutput(value, result->name());
  results.push_back(result);
}

Node* ReplaceByFusion(Graph& graph, FusionBody body, ir::Attrs attrs,
                      const ir::Location& location, Node* before,
                      const std::vector<Node*>& dead) {
  Node* fusion =
      graph.AddNode(ir::OpKind::kFusion, std::move(body.operands),
                    std::move(attrs), location, before, std::move(body.graph));
  std::vector<std::string> names = Redirect(graph, body.results, *fusion);
  graph.EraseAll(dead);
  graph.RenameResults(fusion, std::move(names));
  return fusion;
}

std::vector<Node*> Inline(Graph& graph, Node* fusion) {
  const Graph& body = *fusion->body();
  std::unordered_map<const Value*, Value*> values;  // by value of the body
  for (size_t i = 0; i < body.inputs().size(); ++i) {
    values[body.input(i)] = fusion->input(i);
  }
  std::vector<Node*> nodes;
  for (const auto& node : body.nodes()) {
    std::vector<Value*> inputs;
    for (const Value* input : node->inputs())
      inputs.push_back(values.at(input));
    nodes.push_back(graph.AddNode(node->kind(), std::move(inputs),
                                  node->attrs(), fusion->location(), fusion));
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      values[node->output(i)] = nodes.back()->output(i);
      nodes.back()->output(i)->set_type(node->output(i)->type());
    }
  }
  std::vector<std::pair<Value*, std::string>> names;
  for (size_t i = 0; i < fusion->num_outputs(); ++i) {
    Value* result = values.at(body.outputs()[i].value);
    names.emplace_back(result, fusion->output(i)->name());
    graph.ReplaceAllUses(fusion->output(i), result);
  }
  graph.Erase(fusion);
  for (auto& [result, name] : names) graph.Rename(result, std::move(name));
  return nodes;
}

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
