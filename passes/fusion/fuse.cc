// Vertical and sibling fusion.
//
//  1. Every consumer of a free node (constant, iota, broadcast, ...) gets a
//     separate copy: inside a kernel it costs nothing.
//  2. Nodes are clustered, see clustering.h.
//  3. Each cluster becomes a `fusion` node.
//
// With fusion off, only free nodes are merged into their consumer, as in an
// eager framework's kernels.

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/op.h"
#include "passes/fusion/clustering.h"
#include "passes/fusion/duplicate_free_nodes.h"
#include "passes/fusion/iteration_domain.h"
#include "passes/passes.h"
#include "passes/simplify/dead_code.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Use;
using ir::Value;

using ValueSet = std::unordered_set<const Value*>;

ValueSet OutputsOf(const Graph& graph) {
  ValueSet outputs;
  for (const ir::Output& output : graph.outputs()) outputs.insert(output.value);
  return outputs;
}

// Inserts a row-major copy before each node that reads part of a tiled
// dimension: the offsets of such a read are not affine in the loop indices.
bool CopyPartlyReadTiles(Graph& graph) {
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes()) nodes.push_back(node.get());
  bool changed = false;
  for (Node* node : nodes) {
    if (!IsFusible(*node) || node->num_inputs() != 1 ||
        node->input(0)->type().layout.tiles.empty()) {
      continue;
    }
    const Node* const alone[] = {node};
    IterationDomain domain;
    std::string reason;
    if (AnalyzeDomain(alone, {node->output()}, &domain, &reason)) continue;
    ir::Builder builder(graph, node);
    builder.Inherit(node->location());
    node->SetInput(0, builder.Copy(node->input(0), {}));
    changed = true;
  }
  return changed;
}

// Merges equal free nodes of a cluster that are read only outside it: the
// kernel would store the same values several times. `cluster` keeps the first.
void MergeStoredCopies(Graph& graph, std::vector<Node*>& cluster) {
  const std::unordered_set<const Node*> set(cluster.begin(), cluster.end());
  const auto stored_alone = [&](const Node& node) {
    const std::vector<Use>& uses = node.output()->uses();
    return IsFree(node) && !uses.empty() && !graph.IsOutput(node.output()) &&
           std::none_of(uses.begin(), uses.end(),
                        [&](const Use& use) { return set.contains(use.node); });
  };
  std::vector<Node*> kept, stored, dead;
  for (Node* node : cluster) {
    const bool alone = stored_alone(*node);
    const auto twin =
        std::find_if(stored.begin(), stored.end(), [&](const Node* other) {
          return alone && other->kind() == node->kind() &&
                 other->inputs() == node->inputs() &&
                 other->attrs() == node->attrs() &&
                 other->output()->type() == node->output()->type();
        });
    if (twin != stored.end()) {
      graph.ReplaceAllUses(node->output(), (*twin)->output());
      dead.push_back(node);
      continue;
    }
    kept.push_back(node);
    if (alone) stored.push_back(node);
  }
  graph.EraseAll(dead);
  cluster = std::move(kept);
}

// Moves clusters into the bodies of new fusion nodes, all at once.
class Outliner {
 public:
  Outliner(Graph& graph, bool eager)
      : graph_(graph),
        eager_(eager),
        num_nodes_(graph.nodes().size()),
        outputs_(OutputsOf(graph)) {}

  void Add(const std::vector<Node*>& members) {
    const std::vector<Node*> nodes = CanonicalOrder(members);
    const std::unordered_set<const Node*> set(nodes.begin(), nodes.end());
    auto body = std::make_unique<Graph>("fusion");
    std::unordered_map<const Value*, Value*> map;
    std::vector<Value*> operands;
    Outlined outlined;
    for (const Node* node : nodes) {
      std::vector<Value*> inputs;
      for (Value* input : node->inputs()) {
        if (!map.contains(input)) {
          map[input] = body->AddInput(input->type(), ir::InputRole::kData,
                                      input->name());
          operands.push_back(input);
        }
        inputs.push_back(map.at(input));
      }
      Node* copy =
          body->AddNode(node->kind(), inputs, node->attrs(), node->location());
      copy->output()->set_type(node->output()->type());
      body->Rename(copy->output(), node->output()->name());
      map[node->output()] = copy->output();
      if (IsReadOutside(*node, set)) outlined.results.push_back(node->output());
    }
    for (const Value* result : outlined.results) {
      body->AddOutput(map.at(result), result->name());
    }
    // The kernel has the location of its last node.
    outlined.fusion =
        graph_.AddNode("fusion", operands,
                       {{"rounding", std::string(eager_ ? "eager" : "fast")}},
                       members.back()->location(), nullptr, std::move(body));
    outlined_.emplace(members.back(), std::move(outlined));
    dead_.insert(dead_.end(), members.begin(), members.end());
  }

  // Inserts each fusion at the position of its last node and erases its nodes.
  bool Finish() {
    const std::unordered_set<const Node*> dead(dead_.begin(), dead_.end());
    std::vector<Node*> order;
    std::vector<std::pair<Value*, std::string>> names;
    for (size_t n = 0; n < num_nodes_; ++n) {
      Node* node = graph_.nodes()[n].get();
      if (!dead.contains(node)) order.push_back(node);
      const auto it = outlined_.find(node);
      if (it == outlined_.end()) continue;
      const auto& [fusion, results] = it->second;
      order.push_back(fusion);
      for (size_t i = 0; i < results.size(); ++i) {
        names.emplace_back(fusion->output(i), results[i]->name());
        graph_.ReplaceAllUses(results[i], fusion->output(i));
      }
    }
    graph_.EraseAll(dead_);
    graph_.SortTopologically(order);
    for (auto& [value, name] : names) graph_.Rename(value, std::move(name));
    return !dead_.empty();
  }

 private:
  struct Outlined {
    Node* fusion = nullptr;
    std::vector<Value*> results;
  };

  bool IsReadOutside(const Node& node,
                     const std::unordered_set<const Node*>& set) const {
    const std::vector<Use>& uses = node.output()->uses();
    return outputs_.contains(node.output()) ||
           std::any_of(uses.begin(), uses.end(),
                       [&](const Use& use) { return !set.contains(use.node); });
  }

  // Returns the nodes in depth-first order from their results. That order does
  // not depend on copies and other nodes between them, so that equal work
  // becomes equal kernels.
  std::vector<Node*> CanonicalOrder(const std::vector<Node*>& nodes) const {
    const std::unordered_set<const Node*> set(nodes.begin(), nodes.end());
    std::unordered_set<const Node*> visited;
    std::vector<Node*> order;
    std::vector<std::pair<Node*, size_t>> stack;
    for (Node* root : nodes) {
      if (!IsReadOutside(*root, set) || !visited.insert(root).second) continue;
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

  Graph& graph_;
  const bool eager_;
  const size_t num_nodes_;  // in the graph before the first fusion was added
  const ValueSet outputs_;
  std::unordered_map<const Node*, Outlined> outlined_;  // by last node
  std::vector<Node*> dead_;
};

// A lone reshape is a view of its operand, not a kernel.
bool IsView(const std::vector<Node*>& nodes) {
  return nodes.size() == 1 &&
         nodes[0]->op().layout == ir::LayoutRule::kRowMajor;
}

}  // namespace

bool Fuse(Graph& graph, PassContext& context) {
  const PassOptions& options = context.options();
  bool changed = EraseDeadNodes(graph);  // a kernel needs results
  changed |= CopyPartlyReadTiles(graph);
  changed |= DuplicateFreeNodes(graph);
  Clustering clustering(graph, context);
  clustering.Merge(!options.fusion);
  std::vector<std::vector<Node*>> clusters = clustering.Clusters();
  for (std::vector<Node*>& cluster : clusters) {
    MergeStoredCopies(graph, cluster);
  }
  Outliner outliner(graph, options.eager_rounding);
  for (const std::vector<Node*>& cluster : clusters) {
    if (!IsView(cluster)) outliner.Add(cluster);
  }
  changed |= outliner.Finish();
  return changed;
}

}  // namespace fusor::passes
