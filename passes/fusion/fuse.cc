// Vertical and sibling fusion.
//
//  1. On a CPU, layout copies between loops and library ops become nodes that
//     a kernel can contain.
//  2. Every consumer of a free node (constant, iota, broadcast, ...) gets a
//     separate copy: inside a kernel it costs nothing.
//  3. Nodes are clustered, see clustering.h.
//  4. Clusters recompute values that others store for them, see
//     rematerialize.h.
//  5. Small clusters that read only inputs of the graph are merged.
//  6. Each cluster becomes a `fusion` node.
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

// Returns the dimension along which the elements of a tensor are contiguous.
int InnermostDim(const ir::TensorType& type) {
  const std::vector<ir::PhysicalAxis> axes = ir::PhysicalAxes(type);
  return axes.empty() ? -1 : axes.back().dim;
}

// Returns true for a layout copy that a kernel can take over: the loops of its
// operand visit its result in vectors.
bool IsVectorCopy(const Node& node) {
  if (node.kind() != ir::OpKind::kCopy) return false;
  const ir::TensorType& from = node.input(0)->type();
  const ir::TensorType& to = node.output()->type();
  return from.dtype == to.dtype && from.rank() == 4 &&
         InnermostDim(from) == InnermostDim(to);
}

// Returns true for a transpose that changes nothing but the layout.
bool IsRelayout(const Node& node) {
  return node.kind() == ir::OpKind::kTranspose &&
         std::ranges::is_sorted(node.attrs().Ints("permutation")) &&
         node.input(0)->type().layout != node.output()->type().layout;
}

// Replaces layout copies beside loops by transposes that change nothing but the
// layout: a kernel then loads or stores another layout than that of its loops.
// Returns true if there is one.
bool ReplaceCopies(Graph& graph) {
  const auto is_loop = [](const Node* node) {
    return node != nullptr && IsFusible(*node) && !IsFree(*node);
  };
  std::vector<Node*> copies;
  for (const auto& node : graph.nodes()) {
    if (!IsVectorCopy(*node)) continue;
    const std::vector<Use>& uses = node->output()->uses();
    if (is_loop(node->input(0)->producer()) ||
        std::ranges::any_of(uses, is_loop, &Use::node)) {
      copies.push_back(node.get());
    }
  }
  for (Node* copy : copies) {
    Node* relayout =
        graph.AddNode(ir::OpKind::kTranspose, {copy->input(0)},
                      {{"permutation", std::vector<int64_t>{0, 1, 2, 3}}},
                      copy->location(), copy);
    relayout->output()->set_type(copy->output()->type());
    graph.ReplaceAllUses(copy->output(), relayout->output());
  }
  graph.EraseAll(copies);
  return !copies.empty();
}

// Replaces these transposes by copies again in a cluster that only moves data,
// and removes them from it.
void RestoreCopies(Graph& graph, std::vector<Node*>& cluster) {
  if (!std::ranges::all_of(cluster, [](Node* node) { return IsFree(*node); })) {
    return;
  }
  std::vector<Node*> kept, dead;
  for (Node* node : cluster) {
    if (!IsRelayout(*node)) {
      kept.push_back(node);
      continue;
    }
    ir::Builder builder(graph, node);
    builder.Inherit(node->location());
    graph.ReplaceAllUses(
        node->output(),
        builder.Copy(node->input(0), node->output()->type().layout));
    dead.push_back(node);
  }
  graph.EraseAll(dead);
  cluster = std::move(kept);
}

// Returns whether two nodes compute the same value by free nodes.
bool AreEqual(const Node& a, const Node& b) {
  if (&a == &b) return true;
  if (!IsFree(a) || a.kind() != b.kind() || a.attrs() != b.attrs() ||
      a.output()->type() != b.output()->type()) {
    return false;
  }
  return std::ranges::equal(
      a.inputs(), b.inputs(), [](const Value* x, const Value* y) {
        return x == y ||
               (x->producer() != nullptr && y->producer() != nullptr &&
                AreEqual(*x->producer(), *y->producer()));
      });
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
    const auto twin = std::find_if(
        stored.begin(), stored.end(),
        [&](const Node* other) { return alone && AreEqual(*node, *other); });
    if (twin != stored.end()) {
      graph.ReplaceAllUses(node->output(), (*twin)->output());
      dead.push_back(node);
      continue;
    }
    kept.push_back(node);
    if (alone) stored.push_back(node);
  }
  graph.EraseAll(dead);
  // Erases nodes that only erased ones read.
  for (size_t i = kept.size(); i-- > 0 && !dead.empty();) {
    if (!IsFree(*kept[i]) || !graph.IsUnused(kept[i]->output())) continue;
    graph.Erase(kept[i]);
    kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(i));
  }
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
  const bool loops =
      nodes.size() > 1 && (IsFusible(*nodes[0]) || IsPlacement(*nodes[0]));
  return !loops || AnalyzeDomain(analyzed, results, &domain, &reason) ? order
                                                                      : nodes;
}

// A kernel of so few elements takes no longer than its launch.
constexpr int64_t kSmallSource = 4096;

// Whether the cluster is a loop over few elements that reads only inputs of the
// graph, e.g. parameters, and none of its results is an output.
bool IsSmallSource(const std::vector<Node*>& cluster, const ValueSet& outputs) {
  const std::unordered_set<const Node*> set(cluster.begin(), cluster.end());
  const auto reads_inputs = [&](const Node* node) {
    return std::ranges::all_of(node->inputs(), [&](const Value* input) {
      return input->producer() == nullptr || set.contains(input->producer());
    });
  };
  return !std::ranges::all_of(cluster, [](Node* n) { return IsFree(*n); }) &&
         std::ranges::all_of(cluster, [&](const Node* node) {
           return IsFusible(*node) && reads_inputs(node) &&
                  node->output()->type().num_elements() <= kSmallSource &&
                  !outputs.contains(node->output());
         });
}

// Merges small sources of equal loops. Each would be a launch of its own, such
// as those that bound Swin's logit scales.
void MergeSmallSources(const ValueSet& outputs, PassContext& context,
                       std::vector<std::vector<Node*>>& clusters) {
  std::vector<std::vector<Node*>*> merged;
  for (std::vector<Node*>& cluster : clusters) {
    if (!IsSmallSource(cluster, outputs)) continue;
    const Value* result = cluster.back()->output();
    const auto takes = [&](const std::vector<Node*>* first) {
      if (first->back()->output()->type() != result->type()) return false;
      std::vector<const Node*> nodes(cluster.begin(), cluster.end());
      nodes.insert(nodes.end(), first->begin(), first->end());
      ValueSet results = ResultsOf(cluster, outputs);
      results.merge(ResultsOf(*first, outputs));
      IterationDomain domain;
      std::string reason;
      return nodes.size() <= kMaxKernelNodes &&
             AnalyzeDomain(nodes, results, &domain, &reason);
    };
    const auto first = std::ranges::find_if(merged, takes);
    if (first == merged.end()) {
      merged.push_back(&cluster);
      continue;
    }
    if (!context.ConsumeFuel(kFusePass, *result)) return;
    context.Record({.pass = kFusePass,
                    .subject = result->name(),
                    .accepted = true,
                    .reason = "reads only inputs, as another small kernel does",
                    .location = cluster.back()->location()});
    (*first)->insert((*first)->begin(), cluster.begin(), cluster.end());
    cluster.clear();
  }
}

}  // namespace

bool Fuse(Graph& graph, PassContext& context) {
  const PassOptions& options = context.options();
  bool changed = EraseDeadNodes(graph);  // a kernel needs results
  changed |= CopyPartlyReadTiles(graph);
  // Not measured on a GPU.
  const bool cpu = !context.target().target().simt;
  if (options.fusion && cpu) changed |= ReplaceCopies(graph);
  changed |= DuplicateFreeNodes(graph);
  Clustering clustering(graph, context);
  clustering.Merge(!options.fusion);
  std::vector<std::vector<Node*>> clusters = clustering.Clusters();
  if (options.fusion) Rematerialize(graph, context, clusters);
  for (std::vector<Node*>& cluster : clusters) {
    RestoreCopies(graph, cluster);
    MergeStoredCopies(graph, cluster);
  }
  const ValueSet outputs = OutputsOf(graph);
  if (options.fusion) MergeSmallSources(outputs, context, clusters);
  std::erase_if(clusters, [](const auto& cluster) { return cluster.empty(); });
  std::vector<OutlineRequest> requests;
  for (const std::vector<Node*>& cluster : clusters) {
    const auto is_view = [](const Node* node) { return ir::IsView(*node); };
    if (std::ranges::all_of(cluster, is_view)) continue;
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
