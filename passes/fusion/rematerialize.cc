#include "passes/fusion/rematerialize.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "ir/op.h"
#include "ir/scalar_op.h"
#include "ir/target/cost.h"
#include "passes/fusion/clustering.h"
#include "passes/fusion/iteration_domain.h"
#include "passes/fusion/outline.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Use;
using ir::Value;

// Smaller values cost next to nothing. On a GPU they cost registers, which
// limit its threads.
constexpr int64_t kMinElements = 256;
constexpr int64_t kMinElementsSimt = 1 << 16;
constexpr size_t kMaxCopies = 64;  // nodes that are copied for one value
// A value that is not stored takes no memory either. Its operations may take
// this much more time than its loads and stores would.
constexpr double kMemoryWorth = 2;

class Rematerialization {
 public:
  Rematerialization(Graph& graph, PassContext& context,
                    std::vector<std::vector<Node*>>& clusters)
      : graph_(graph),
        context_(context),
        clusters_(clusters),
        simt_(context.target().target().simt) {
    for (const ir::Output& output : graph.outputs()) {
      outputs_.insert(output.value);
    }
    for (size_t c = 0; c < clusters.size(); ++c) {
      for (const Node* node : clusters[c]) {
        cluster_.emplace(node, static_cast<int>(c));
      }
    }
  }

  void Run() {
    std::vector<Node*> nodes;
    for (const auto& node : graph_.nodes()) nodes.push_back(node.get());
    for (size_t i = nodes.size(); i-- > 0;) {
      if (!IsCandidate(*nodes[i])) continue;
      if (!Visit(*nodes[i])) break;
    }
    graph_.EraseAll(dead_);
    std::erase_if(clusters_,
                  [](const auto& cluster) { return cluster.empty(); });
  }

 private:
  // How a cluster computes a value itself.
  struct Recipe {
    int reader;                         // the cluster
    std::vector<Node*> copied{};        // topological order
    std::vector<const Value*> loads{};  // that the cluster did not read before
    double saved_ns = 0;
    double work_ns = 0;
  };

  bool IsCandidate(const Node& node) const {
    return ClusterOf(&node) >= 0 &&
           node.op().fusion == ir::FusionKind::kElementwise && !IsFree(node) &&
           node.output()->type().num_elements() >=
               (simt_ ? kMinElementsSimt : kMinElements);
  }

  // Returns the cluster of a node; -1 if it has none.
  int ClusterOf(const Node* node) const {
    const auto it = cluster_.find(node);
    return it == cluster_.end() ? -1 : it->second;
  }
  int ClusterOf(const Value* value) const {
    return ClusterOf(value->producer());
  }

  // Returns the clusters that read the value, -1 for other readers.
  std::set<int> Readers(const Value* value) const {
    std::set<int> readers;
    if (outputs_.contains(value)) readers.insert(-1);
    for (const Use& use : value->uses()) {
      if (!is_dead_.contains(use.node)) readers.insert(ClusterOf(use.node));
    }
    return readers;
  }

  // Whether a kernel stores the value for others, or the graph has it.
  bool IsStored(const Value* value) const {
    const std::set<int> readers = Readers(value);
    const int own = ClusterOf(value);
    return own < 0 || readers.size() > 1 ||
           (readers.size() == 1 && *readers.begin() != own);
  }

  // Whether a cluster is a loop nest that can take more nodes.
  bool TakesNodes(int cluster) const {
    const std::vector<Node*>& nodes = clusters_[cluster];
    return std::all_of(nodes.begin(), nodes.end(),
                       [](const Node* node) { return IsFusible(*node); }) &&
           !std::all_of(nodes.begin(), nodes.end(),
                        [](const Node* node) { return IsFree(*node); });
  }

  // Returns false once the pass is out of fuel.
  bool Visit(Node& node) {
    Value* value = node.output();
    std::set<int> readers = Readers(value);
    readers.erase(ClusterOf(&node));
    const size_t others = std::erase_if(
        readers, [&](int reader) { return reader < 0 || !TakesNodes(reader); });
    if (readers.empty()) return true;
    const bool stays = others > 0;
    std::vector<Recipe> recipes;
    for (const int reader : readers) {
      auto recipe = RecipeFor(node, reader);
      if (!recipe.has_value()) continue;
      if (!stays || recipe->work_ns < recipe->saved_ns) {
        recipes.push_back(std::move(*recipe));
      }
    }
    if (recipes.empty()) return true;
    if (!stays && recipes.size() < readers.size()) return true;
    double saved_ns = 0, work_ns = 0;
    for (Recipe& recipe : recipes) {
      if (!stays) {  // nor is the value stored
        recipe.saved_ns +=
            Ns(value->type()) / static_cast<double>(recipes.size());
      }
      if (recipe.saved_ns <= 0) return true;
      saved_ns += recipe.saved_ns;
      work_ns += recipe.work_ns;
    }
    if (work_ns > kMemoryWorth * saved_ns) return true;
    if (!StaysKernel(node, recipes, stays)) return true;
    if (!context_.ConsumeFuel(kFusePass, *value)) return false;
    for (const Recipe& recipe : recipes) Apply(node, recipe);
    MarkDead(node);
    return true;
  }

  // Estimates the time of loading or storing a value.
  double Ns(const ir::TensorType& type) const {
    return static_cast<double>(ir::KernelBytes(type)) /
           context_.target().target().memory_gb_per_s;
  }

  std::optional<Recipe> RecipeFor(Node& node, int reader) const {
    Recipe recipe{reader};
    if (!Collect(node, node, recipe)) return std::nullopt;
    const std::optional<IterationDomain> domain = DomainWith(recipe);
    if (!domain.has_value()) return std::nullopt;
    const double passes = domain->num_sweeps;
    recipe.saved_ns = Ns(node.output()->type());
    for (const Value* load : recipe.loads) recipe.saved_ns -= Ns(load->type());
    // On a GPU, several operands instead of one result need more registers.
    if (simt_ && recipe.saved_ns < 0) return std::nullopt;
    recipe.saved_ns *= passes;
    // A multiply-add is two of the operations at the peak rate.
    const double operations_per_ns =
        context_.target().target().peak_gflops_f32 / 2;
    for (const Node* copied : recipe.copied) {
      if (IsFree(*copied)) continue;
      recipe.work_ns +=
          passes * ir::ScalarCost(ir::NodeScalar(*copied)) *
          static_cast<double>(copied->output()->type().num_elements()) /
          operations_per_ns;
    }
    return recipe;
  }

  // Returns the reader's domain with the recipe applied; nullopt if it is no
  // longer a kernel. Until then the copied nodes take the place of their
  // copies, and read the copies that the reader already has: one value must not
  // be read at two indices.
  std::optional<IterationDomain> DomainWith(const Recipe& recipe) const {
    std::vector<Node*> nodes = recipe.copied;
    nodes.insert(nodes.end(), clusters_[recipe.reader].begin(),
                 clusters_[recipe.reader].end());
    if (nodes.size() > kMaxKernelNodes) return std::nullopt;
    const std::unordered_set<const Value*> results = ResultsOf(recipe.reader);
    std::vector<std::pair<Use, Value*>> originals;
    for (Node* node : recipe.copied) {
      for (size_t i = 0; i < node->num_inputs(); ++i) {
        Value* copy = CopyIn(recipe.reader, node->input(i));
        if (copy == nullptr) continue;
        originals.push_back({{node, static_cast<int>(i)}, node->input(i)});
        node->SetInput(i, copy);
      }
    }
    nodes = DepthFirst(nodes, results);
    const std::vector<const Node*> analyzed(nodes.begin(), nodes.end());
    IterationDomain domain;
    std::string reason;
    const bool ok = AnalyzeDomain(analyzed, results, &domain, &reason);
    for (const auto& [use, value] : originals) {
      use.node->SetInput(use.operand, value);
    }
    return ok ? std::optional(std::move(domain)) : std::nullopt;
  }

  // Adds `node` and the nodes that compute its operands to the recipe for
  // `target`, up to values that can be loaded. Returns false if there are too
  // many, or if one cannot be copied.
  bool Collect(Node& node, const Node& target, Recipe& recipe) const {
    if (node.num_outputs() != 1) return false;
    for (const Value* input : node.inputs()) {
      Node* producer = input->producer();
      if (Contains(recipe.copied, producer) ||
          CopyIn(recipe.reader, input) != nullptr ||
          Contains(recipe.loads, input)) {
        continue;
      }
      if (!IsLoaded(input, target, recipe.reader)) {
        if (!Collect(*producer, target, recipe)) return false;
      } else if (!Readers(input).contains(recipe.reader)) {
        recipe.loads.push_back(input);
      }
    }
    recipe.copied.push_back(&node);
    return recipe.copied.size() <= kMaxCopies;
  }

  template <typename T>
  static bool Contains(const std::vector<T>& list, const T& item) {
    return std::find(list.begin(), list.end(), item) != list.end();
  }

  // Whether the reader loads the value to compute the target.
  bool IsLoaded(const Value* value, const Node& target, int reader) const {
    const Node* producer = value->producer();
    const int own = ClusterOf(producer);
    if (own < 0) return true;  // an input, or the result of a library call
    if (IsFree(*producer)) return false;
    if (producer->op().fusion != ir::FusionKind::kElementwise ||
        Readers(value).contains(reader) || IsStored(value)) {
      return true;
    }
    // A small result that its kernel computes from a reduction's.
    return own == ClusterOf(&target) &&
           value->type().num_elements() <
               target.output()->type().num_elements() &&
           FollowsReduction(*producer);
  }

  // Whether the node's cluster computes it from a reduction's result.
  bool FollowsReduction(const Node& node) const {
    std::vector<const Node*> open{&node};
    std::unordered_set<const Node*> seen{&node};
    while (!open.empty()) {
      const Node* next = open.back();
      open.pop_back();
      if (next->op().fusion == ir::FusionKind::kReduce) return true;
      for (const Value* input : next->inputs()) {
        const Node* producer = input->producer();
        if (producer != nullptr && ClusterOf(producer) == ClusterOf(&node) &&
            seen.insert(producer).second) {
          open.push_back(producer);
        }
      }
    }
    return false;
  }

  // Returns the copy of a value in a cluster; null if there is none.
  Value* CopyIn(int cluster, const Value* value) const {
    const auto it = copies_.find({cluster, value});
    return it == copies_.end() ? nullptr : it->second;
  }

  std::unordered_set<const Value*> ResultsOf(int cluster) const {
    std::unordered_set<const Value*> results;
    for (const Node* node : clusters_[cluster]) {
      if (IsStored(node->output())) results.insert(node->output());
    }
    return results;
  }

  // Whether the node's cluster is still a kernel if it stores what the recipes
  // load, and the node's value only if that `stays`.
  bool StaysKernel(const Node& node, const std::vector<Recipe>& recipes,
                   bool stays) const {
    const int own = ClusterOf(&node);
    std::unordered_set<const Value*> results = ResultsOf(own);
    if (!stays) results.erase(node.output());
    for (const Recipe& recipe : recipes) {
      for (const Value* load : recipe.loads) {
        if (ClusterOf(load) == own) results.insert(load);
      }
    }
    const std::vector<const Node*> nodes = Needed(own, results);
    IterationDomain domain;
    std::string reason;
    return nodes.empty() || AnalyzeDomain(nodes, results, &domain, &reason);
  }

  // Returns the cluster's nodes that compute these results of it.
  std::vector<const Node*> Needed(
      int cluster, const std::unordered_set<const Value*>& results) const {
    std::unordered_set<const Node*> needed;
    std::vector<const Node*> nodes;
    for (size_t i = clusters_[cluster].size(); i-- > 0;) {
      const Node* node = clusters_[cluster][i];
      const auto& uses = node->output()->uses();
      if (results.contains(node->output()) ||
          std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
            return needed.contains(use.node);
          })) {
        needed.insert(node);
        nodes.push_back(node);
      }
    }
    std::reverse(nodes.begin(), nodes.end());
    return nodes;
  }

  void Apply(const Node& node, const Recipe& recipe) {
    std::vector<Node*>& reader = clusters_[recipe.reader];
    std::vector<Node*> added;
    for (const Node* from : recipe.copied) {
      std::vector<Value*> inputs;
      for (Value* input : from->inputs()) {
        Value* copy = CopyIn(recipe.reader, input);
        inputs.push_back(copy != nullptr ? copy : input);
      }
      Node* copy = graph_.AddNode(from->kind(), std::move(inputs),
                                  from->attrs(), from->location());
      copy->output()->set_type(from->output()->type());
      // Does not depend on which names earlier passes have used.
      graph_.Rename(copy->output(), from->output()->name() + "_recomputed");
      cluster_.emplace(copy, recipe.reader);
      copies_[{recipe.reader, from->output()}] = copy->output();
      added.push_back(copy);
    }
    const std::vector<Use> uses = node.output()->uses();
    for (const Use& use : uses) {
      if (ClusterOf(use.node) == recipe.reader) {
        use.node->SetInput(use.operand, added.back()->output());
      }
    }
    // The copies read earlier copies, and are read by others and by the rest.
    // The last node, which places the kernel, is a result and stays last.
    reader.insert(reader.begin(), added.begin(), added.end());
    reader = DepthFirst(reader, ResultsOf(recipe.reader));
    context_.Record({.pass = kFusePass,
                     .subject = node.output()->name(),
                     .accepted = true,
                     .reason = "recomputed by its reader",
                     .saved_ns = static_cast<int64_t>(recipe.saved_ns),
                     .modelled_ns = static_cast<int64_t>(recipe.work_ns),
                     .location = reader.back()->location()});
  }

  // Removes the node from its cluster, and what only it read, unless something
  // reads it. It is erased in the end: copies_ has its value.
  void MarkDead(Node& node) {
    if (!Readers(node.output()).empty()) return;
    const int own = ClusterOf(&node);
    std::erase(clusters_[own], &node);
    cluster_.erase(&node);
    is_dead_.insert(&node);
    dead_.push_back(&node);
    for (const Value* input : node.inputs()) {
      if (ClusterOf(input) == own) MarkDead(*input->producer());
    }
  }

  Graph& graph_;
  PassContext& context_;
  std::vector<std::vector<Node*>>& clusters_;
  const bool simt_;
  std::unordered_set<const Value*> outputs_;
  std::unordered_map<const Node*, int> cluster_;
  std::map<std::pair<int, const Value*>, Value*> copies_;
  std::unordered_set<const Node*> is_dead_;
  std::vector<Node*> dead_;
};

}  // namespace

void Rematerialize(Graph& graph, PassContext& context,
                   std::vector<std::vector<Node*>>& clusters) {
  Rematerialization(graph, context, clusters).Run();
}

}  // namespace fusor::passes
