// Vertical and sibling fusion.
//
//  1. Every consumer of a free node (constant, iota, broadcast, ...) gets a
//     separate copy: inside a kernel it costs nothing.
//  2. Nodes are clustered, see clustering.h.
//  3. Clusters recompute values that others store for them, see
//     rematerialize.h.
//  4. Each cluster becomes a `fusion` node.
//
// With fusion off, only free nodes are merged into their consumer, as in an
// eager framework's kernels.

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/op.h"
#include "passes/fusion/clustering.h"
#include "passes/fusion/iteration_domain.h"
#include "passes/fusion/outline.h"
#include "passes/fusion/rematerialize.h"
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
    const bool reads_part = node->num_inputs() == 1 ||
                            node->op().fusion == ir::FusionKind::kIndexed;
    if (!IsFusible(*node) || !reads_part ||
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

// Returns the values of the nodes that other nodes or the graph's outputs read.
ValueSet ResultsOf(const std::vector<Node*>& nodes, const ValueSet& outputs) {
  const std::unordered_set<const Node*> set(nodes.begin(), nodes.end());
  ValueSet results;
  for (const Node* node : nodes) {
    const std::vector<Use>& uses = node->output()->uses();
    const bool outside =
        outputs.contains(node->output()) ||
        std::any_of(uses.begin(), uses.end(),
                    [&](const Use& use) { return !set.contains(use.node); });
    if (outside) results.insert(node->output());
  }
  return results;
}

// Returns the nodes in depth-first order from the results. That order does not
// depend on copies and other nodes between them, so that equal work becomes
// equal kernels.
std::vector<Node*> DepthFirst(const std::vector<Node*>& nodes,
                              const ValueSet& results) {
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

// Returns the order of the nodes in a kernel: DepthFirst, unless the loops that
// clustering has found exist only in the present order. Which values are
// assumed to be aligned depends on the order (iteration_domain.cc).
std::vector<Node*> KernelOrder(const std::vector<Node*>& nodes,
                               const ValueSet& outputs) {
  const ValueSet results = ResultsOf(nodes, outputs);
  std::vector<Node*> order = DepthFirst(nodes, results);
  const std::vector<const Node*> analyzed(order.begin(), order.end());
  IterationDomain domain;
  std::string reason;
  const bool loops = nodes.size() > 1 && IsFusible(*nodes[0]);
  return !loops || AnalyzeDomain(analyzed, results, &domain, &reason) ? order
                                                                      : nodes;
}

// A lone reshape is a view of its operand, not a kernel.
bool IsView(const std::vector<Node*>& nodes) {
  return nodes.size() == 1 && nodes[0]->kind() == ir::OpKind::kReshape;
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
  if (options.fusion) Rematerialize(graph, context, clusters);
  for (std::vector<Node*>& cluster : clusters) {
    MergeStoredCopies(graph, cluster);
  }
  const ValueSet outputs = OutputsOf(graph);
  std::vector<OutlineRequest> requests;
  for (const std::vector<Node*>& cluster : clusters) {
    if (IsView(cluster)) continue;
    // The kernel has the position and the location of its last node.
    requests.push_back({.members = KernelOrder(cluster, outputs),
                        .position = cluster.back(),
                        .location = cluster.back()->location(),
                        .eager_rounding = options.eager_rounding});
  }
  Outline(graph, requests);
  return changed || !requests.empty();
}

}  // namespace fusor::passes
