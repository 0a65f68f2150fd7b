// Vertical and sibling fusion.
//
//  1. Every consumer of a free node (a splat, iota, broadcast, ...) gets a copy
//     of its own: inside a kernel it costs nothing.
//  2. Each fusible node starts as a cluster. A queue holds pairs of clusters,
//     producer and consumer or two readers of one value, by the modelled time
//     that merging them saves: bytes that no longer cross memory, plus one
//     launch. Integer nanoseconds; ties by position, so that the result does
//     not depend on addresses.
//  3. The best pair is merged when its loop nests agree (AnalyzeDomain), when
//     no path leaves the union and comes back, and within size limits. The
//     first rule that fails is recorded as the reason.
//  4. Each cluster becomes a `fusion` node.
//
// With fusion off only free nodes join their consumer, as they would inside an
// eager framework's kernels.
//
// A producer's value that others need stays a result of the merged cluster.

#include <algorithm>
#include <queue>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "ir/builder.h"
#include "ir/cost.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "passes/dead_code.h"
#include "passes/fusion_domain.h"
#include "passes/passes.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Use;
using ir::Value;

constexpr char kPass[] = "fuse";
constexpr size_t kMaxOperands = 96;
constexpr size_t kMaxNodes = 400;
constexpr size_t kMaxReductions = 16;
// Siblings far apart would keep what they share, and what they make, alive.
constexpr int kMaxSiblingDistance = 64;
constexpr int64_t kMinSharedBytes = 1024;

// --- Step 1
// -------------------------------------------------------------------

// One copy per use beyond the first, operands before results so that chains of
// free nodes are copied whole.
bool DuplicateFreeNodes(Graph& graph) {
  bool changed = false;
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes()) nodes.push_back(node.get());
  for (size_t i = nodes.size(); i-- > 0;) {
    Node* node = nodes[i];
    if (!IsFree(*node)) continue;
    const std::vector<Use> uses = node->output()->uses();
    for (size_t u = graph.IsOutput(node->output()) ? 0 : 1; u < uses.size();
         ++u) {
      Node* copy = graph.AddNode(node->op_name(), node->inputs(), node->attrs(),
                                 node->location(), node);
      copy->output()->set_type(node->output()->type());
      uses[u].node->SetInput(uses[u].operand, copy->output());
      nodes.push_back(copy);  // its own operand may be free as well
      std::rotate(nodes.begin() + i, nodes.end() - 1, nodes.end());
      changed = true;
    }
  }
  return changed;
}

// A part of a tiled dimension is read from a row-major copy: its offsets are
// not affine in the loops.
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
    FusionDomain domain;
    std::string reason;
    if (AnalyzeDomain(alone, {node->output()}, &domain, &reason)) continue;
    ir::Builder builder(graph, node);
    builder.set_location(node->location());
    node->SetInput(0, builder.Copy(node->input(0), {}));
    changed = true;
  }
  return changed;
}

// --- Step 2, 3
// ------------------------------------------------------------------

struct Cluster {
  std::vector<Node*> nodes;  // by position; empty once merged away
  int version = 0;
};

struct Candidate {
  int64_t saved_ns;
  int first, second;  // clusters; first the one that began earlier
  int first_version, second_version;
  bool operator<(const Candidate& other) const {
    if (saved_ns != other.saved_ns) return saved_ns < other.saved_ns;
    if (first != other.first) return first > other.first;
    return second > other.second;
  }
};

class Clustering {
 public:
  Clustering(Graph& graph, PassContext& context)
      : graph_(graph), context_(context) {
    for (const auto& node : graph.nodes()) {
      if (!IsFusible(*node) && !IsScatter(*node)) continue;
      cluster_of_[node.get()] = static_cast<int>(clusters_.size());
      clusters_.push_back({{node.get()}});
    }
  }

  void Merge(bool only_free) {
    only_free_ = only_free;
    for (size_t c = 0; c < clusters_.size(); ++c) {
      PushCandidates(static_cast<int>(c));
    }
    while (!queue_.empty()) {
      const Candidate candidate = queue_.top();
      queue_.pop();
      Cluster& a = clusters_[candidate.first];
      Cluster& b = clusters_[candidate.second];
      if (a.version != candidate.first_version ||
          b.version != candidate.second_version || a.nodes.empty() ||
          b.nodes.empty() ||
          (only_free_ &&
           !FreeBeforeConsumer(candidate.first, candidate.second))) {
        continue;
      }
      const std::string reason = WhyNot(a, b);
      Decision decision{
          .pass = kPass,
          .subject = Describe(a) + " + " + Describe(b),
          .accepted = reason.empty(),
          .reason = reason,
          .saved_ns = candidate.saved_ns,
          .modelled_ns = ModelledNs(a) + ModelledNs(b) - candidate.saved_ns};
      if (reason.empty() && !only_free_ &&
          !context_.ConsumeFuel(kPass, *b.nodes.back()->output())) {
        only_free_ = true;  // what is left is no rewrite worth counting
        continue;
      }
      context_.Record(std::move(decision));
      if (!reason.empty()) continue;
      for (Node* node : b.nodes) cluster_of_[node] = candidate.first;
      std::vector<Node*> merged;
      std::merge(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(),
                 std::back_inserter(merged), ByPosition);
      a.nodes = std::move(merged);
      b.nodes.clear();
      ++a.version;
      ++b.version;
      PushCandidates(candidate.first);
    }
  }

  const std::vector<Cluster>& clusters() const { return clusters_; }

 private:
  static bool ByPosition(const Node* a, const Node* b) {
    return a->position() < b->position();
  }

  static bool IsScatter(const Node& node) {
    return node.op().fusion == ir::FusionKind::kInjective &&
           node.op().operand_map == nullptr;
  }

  static std::string Describe(const Cluster& cluster) {
    return cluster.nodes.back()->output()->name();
  }

  int ClusterOf(const Node* node) const {
    const auto it = cluster_of_.find(node);
    return it == cluster_of_.end() ? -1 : it->second;
  }

  std::set<int> Neighbours(int cluster) const {
    std::set<int> neighbours;
    for (const Node* node : clusters_[cluster].nodes) {
      for (const Value* input : node->inputs()) {
        if (input->producer() != nullptr) {
          neighbours.insert(ClusterOf(input->producer()));
        }
        if (input->type().num_bytes() < kMinSharedBytes) continue;
        for (const Use& use : input->uses()) {
          neighbours.insert(ClusterOf(use.node));
        }
      }
      for (const Use& use : node->output()->uses()) {
        neighbours.insert(ClusterOf(use.node));
      }
    }
    neighbours.erase(-1);
    neighbours.erase(cluster);
    return neighbours;
  }

  void PushCandidates(int cluster) {
    for (int other : Neighbours(cluster)) {
      const int a = std::min(cluster, other);
      const int b = std::max(cluster, other);
      if (only_free_ && !FreeBeforeConsumer(a, b)) continue;
      queue_.push({SavedNs(clusters_[a], clusters_[b]), a, b,
                   clusters_[a].version, clusters_[b].version});
    }
  }

  // One of them is free nodes that only the other reads.
  bool FreeBeforeConsumer(int a, int b) const {
    for (const auto& [producer, consumer] : {std::pair(a, b), {b, a}}) {
      const std::vector<Node*>& nodes = clusters_[producer].nodes;
      const auto feeds = [&, c = consumer, p = producer](const Node* node) {
        return IsFree(*node) && !graph_.IsOutput(node->output()) &&
               std::all_of(node->output()->uses().begin(),
                           node->output()->uses().end(), [&](const Use& use) {
                             const int user = ClusterOf(use.node);
                             return user == c || user == p;
                           });
      };
      if (std::all_of(nodes.begin(), nodes.end(), feeds)) return true;
    }
    return false;
  }

  bool UsedOutside(const Value* value, int a, int b) const {
    if (graph_.IsOutput(value)) return true;
    return std::any_of(value->uses().begin(), value->uses().end(),
                       [&](const Use& use) {
                         const int c = ClusterOf(use.node);
                         return c != a && c != b;
                       });
  }

  // Reads that the second no longer makes, and writes that nobody needs.
  int64_t SavedNs(const Cluster& a, const Cluster& b) const {
    const int ca = ClusterOf(a.nodes[0]);
    const int cb = ClusterOf(b.nodes[0]);
    int64_t bytes = 0;
    std::unordered_set<const Value*> of_a;
    for (const Cluster* cluster : {&a, &b}) {
      const int other = cluster == &a ? cb : ca;
      for (const Node* node : cluster->nodes) {
        bool read_by_other = false;
        for (const Use& use : node->output()->uses()) {
          read_by_other |= ClusterOf(use.node) == other;
        }
        if (!read_by_other) continue;
        bytes += node->output()->type().num_bytes();
        if (!UsedOutside(node->output(), ca, cb)) {
          bytes += node->output()->type().num_bytes();
        }
      }
    }
    for (const Node* node : a.nodes) {
      of_a.insert(node->inputs().begin(), node->inputs().end());
    }
    std::unordered_set<const Value*> counted;
    for (const Node* node : b.nodes) {
      for (const Value* input : node->inputs()) {
        const int c =
            input->producer() == nullptr ? -1 : ClusterOf(input->producer());
        if (c == ca || c == cb || !of_a.contains(input)) continue;
        if (counted.insert(input).second) bytes += input->type().num_bytes();
      }
    }
    return ir::KernelNs(bytes, context_.target().target());
  }

  // Of the cluster as one kernel: operands are read and results written once.
  int64_t ModelledNs(const Cluster& cluster) const {
    const int c = ClusterOf(cluster.nodes[0]);
    std::unordered_set<const Value*> moved;
    for (const Node* node : cluster.nodes) {
      for (const Value* input : node->inputs()) {
        if (input->producer() == nullptr || ClusterOf(input->producer()) != c) {
          moved.insert(input);
        }
      }
      if (UsedOutside(node->output(), c, c)) moved.insert(node->output());
    }
    int64_t bytes = 0;
    for (const Value* value : moved) bytes += value->type().num_bytes();
    return ir::KernelNs(bytes, context_.target().target());
  }

  // Empty when the clusters may be merged.
  std::string WhyNot(const Cluster& a, const Cluster& b) {
    if (IsScatter(*a.nodes[0]) || IsScatter(*b.nodes[0])) {
      return "places operands in parts of its result";
    }
    if (a.nodes.size() + b.nodes.size() > kMaxNodes) return "too many nodes";
    std::vector<const Node*> nodes;
    std::merge(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(),
               std::back_inserter(nodes), ByPosition);
    const bool connected = Connected(a, b);
    if (!connected && nodes.back()->position() - nodes.front()->position() >
                          kMaxSiblingDistance) {
      return "siblings too far apart";
    }
    const std::unordered_set<const Node*> set(nodes.begin(), nodes.end());
    std::unordered_set<const Value*> results, operands;
    size_t reductions = 0;
    for (const Node* node : nodes) {
      const Value* value = node->output();
      reductions += node->op().fusion == ir::FusionKind::kReduce ? 1 : 0;
      for (const Value* input : node->inputs()) {
        if (input->producer() == nullptr || !set.contains(input->producer())) {
          operands.insert(input);
        }
      }
      bool outside = graph_.IsOutput(value);
      for (const Use& use : value->uses()) outside |= !set.contains(use.node);
      if (outside) results.insert(value);
    }
    if (operands.size() + results.size() > kMaxOperands) {
      return "too many operands";
    }
    if (reductions > kMaxReductions) return "too many reductions";
    FusionDomain domain;
    std::string reason;
    if (!AnalyzeDomain(nodes, results, &domain, &reason)) return reason;
    if (MakesCycle(nodes, set)) return "would make a cycle";
    return "";
  }

  bool Connected(const Cluster& a, const Cluster& b) const {
    const int ca = ClusterOf(a.nodes[0]);
    const int cb = ClusterOf(b.nodes[0]);
    for (const Cluster* cluster : {&a, &b}) {
      for (const Node* node : cluster->nodes) {
        for (const Use& use : node->output()->uses()) {
          const int c = ClusterOf(use.node);
          if (c == (cluster == &a ? cb : ca)) return true;
        }
      }
    }
    return false;
  }

  // True when a path leaves the set and returns. Other clusters count as one
  // node each, for they will be.
  bool MakesCycle(const std::vector<const Node*>& nodes,
                  const std::unordered_set<const Node*>& set) const {
    const int last = LastPosition(nodes);
    std::vector<const Node*> stack;
    std::unordered_set<const Node*> seen;
    const auto visit = [&](const Node* node) {
      const int c = ClusterOf(node);
      if (c < 0) {
        if (seen.insert(node).second) stack.push_back(node);
        return;
      }
      for (const Node* member : clusters_[c].nodes) {
        if (seen.insert(member).second) stack.push_back(member);
      }
    };
    for (const Node* node : nodes) {
      for (size_t i = 0; i < node->num_outputs(); ++i) {
        for (const Use& use : node->output(i)->uses()) {
          if (!set.contains(use.node)) visit(use.node);
        }
      }
    }
    while (!stack.empty()) {
      const Node* node = stack.back();
      stack.pop_back();
      for (size_t i = 0; i < node->num_outputs(); ++i) {
        for (const Use& use : node->output(i)->uses()) {
          if (set.contains(use.node)) return true;
          if (use.node->position() <= last || ClusterOf(use.node) >= 0) {
            visit(use.node);
          }
        }
      }
    }
    return false;
  }

  static int LastPosition(const std::vector<const Node*>& nodes) {
    return nodes.back()->position();
  }

  Graph& graph_;
  PassContext& context_;
  std::vector<Cluster> clusters_;
  std::unordered_map<const Node*, int> cluster_of_;
  std::priority_queue<Candidate> queue_;
  bool only_free_ = false;
};

// --- Step 4
// -------------------------------------------------------------------

// The nodes in the order of a depth-first walk from their results: it depends
// on what they compute alone, not on how copies and other nodes lay between
// them, so that equal work becomes equal kernels.
std::vector<Node*> CanonicalOrder(const Graph& graph,
                                  const std::vector<Node*>& nodes) {
  const std::unordered_set<const Node*> set(nodes.begin(), nodes.end());
  std::unordered_set<const Node*> visited;
  std::vector<Node*> order;
  std::vector<std::pair<Node*, size_t>> stack;
  for (Node* root : nodes) {
    bool outside = graph.IsOutput(root->output());
    for (const Use& use : root->output()->uses()) {
      outside |= !set.contains(use.node);
    }
    if (!outside || !visited.insert(root).second) continue;
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

// Moves the nodes into the body of a new fusion node.
void Outline(Graph& graph, const std::vector<Node*>& members, bool eager) {
  const std::vector<Node*> nodes = CanonicalOrder(graph, members);
  const std::unordered_set<const Node*> set(nodes.begin(), nodes.end());
  auto body = std::make_unique<Graph>("fusion");
  std::unordered_map<const Value*, Value*> map;
  std::vector<Value*> operands;
  std::vector<Value*> results;
  for (const Node* node : nodes) {
    std::vector<Value*> inputs;
    for (Value* input : node->inputs()) {
      if (!map.contains(input)) {
        map[input] =
            body->AddInput(input->type(), ir::InputRole::kData, input->name());
        operands.push_back(input);
      }
      inputs.push_back(map.at(input));
    }
    Node* copy =
        body->AddNode(node->op_name(), inputs, node->attrs(), node->location());
    copy->output()->set_type(node->output()->type());
    body->Rename(copy->output(), node->output()->name());
    map[node->output()] = copy->output();
    bool outside = graph.IsOutput(node->output());
    for (const Use& use : node->output()->uses()) {
      outside |= !set.contains(use.node);
    }
    if (outside) results.push_back(node->output());
  }
  for (const Value* result : results) {
    body->AddOutput(map.at(result), result->name());
  }
  // The node that the kernel is about: its last one.
  Node* fusion = graph.AddNode(
      "fusion", operands, {{"rounding", std::string(eager ? "eager" : "fast")}},
      members.back()->location(), members.back(), std::move(body));
  std::vector<std::string> names;
  for (size_t i = 0; i < results.size(); ++i) {
    names.push_back(results[i]->name());
    graph.ReplaceAllUses(results[i], fusion->output(i));
  }
  graph.EraseAll(members);
  for (size_t i = 0; i < names.size(); ++i) {
    graph.Rename(fusion->output(i), names[i]);
  }
}

// A lone reshape is a view of its operand, not a kernel.
bool IsView(const std::vector<Node*>& nodes) {
  return nodes.size() == 1 &&
         nodes[0]->op().layout == ir::LayoutRule::kRowMajor;
}

}  // namespace

bool Fuse(Graph& graph, PassContext& context) {
  const PassOptions& options = context.options();
  bool changed = EraseDeadNodes(graph);  // a kernel has results
  changed |= CopyPartlyReadTiles(graph);
  changed |= DuplicateFreeNodes(graph);
  Clustering clustering(graph, context);
  clustering.Merge(!options.fusion);
  for (const Cluster& cluster : clustering.clusters()) {
    if (cluster.nodes.empty() || IsView(cluster.nodes)) continue;
    Outline(graph, cluster.nodes, options.eager_rounding);
    changed = true;
  }
  graph.SortTopologically();
  return changed;
}

}  // namespace fusor::passes
