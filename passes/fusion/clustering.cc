#include "passes/fusion/clustering.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <unordered_map>
#include <utility>

#include "ir/op.h"
#include "ir/target/cost.h"
#include "passes/fusion/iteration_domain.h"

namespace fusor::passes {

using ir::Node;
using ir::Use;
using ir::Value;

namespace {

constexpr size_t kMaxOperands = 96;
constexpr size_t kMaxReductions = 16;
// Merging distant siblings would extend the live ranges of their operands and
// results.
constexpr int kMaxSiblingDistance = 64;
// Two readers of a value are a candidate pair if the value has at least this
// size, or if their loops have the same shape and the value is not a broadcast
// scalar: half of a graph reads the learning rate.
constexpr int64_t kMinSharedBytes = 1024;

bool IsScatter(const Node& node) {
  return node.op().fusion == ir::FusionKind::kInjective && !IsFusible(node) &&
         !IsPlacement(node);
}

bool IsSeparate(const Node& node) {
  return node.op().fusion == ir::FusionKind::kSeparate;
}

// Returns true for one pad or concatenation and views: as a kernel of its own,
// it loads each element once, without a check of its index.
bool IsOnePlacement(std::span<const Node* const> nodes) {
  size_t placements = 0;
  for (const Node* node : nodes) {
    placements += IsPlacement(*node) ? 1 : 0;
    if (!IsPlacement(*node) && !ir::IsView(*node)) return false;
  }
  return placements == 1;
}

const ir::Shape& LoopShape(const Node& node) {
  const bool folds = node.op().fusion == ir::FusionKind::kReduce;
  return (folds ? node.input(0) : node.output())->type().shape;
}

// Returns true if the layout of a tensor at `map` has tiles along a reduction
// axis of the domain that the domain does not have.
bool SplitsReductionAxis(const ir::TensorType& type, const ir::IndexMap& map,
                         const IterationDomain& domain) {
  const auto loops =
      ir::PhysicalAxes({ir::DType::kF32, domain.extents, domain.layout});
  for (const ir::PhysicalAxis& axis : ir::PhysicalAxes(type)) {
    const int dim = map[axis.dim].dim;
    if (dim < 0 || axis.step == 1 || !domain.folded[dim]) continue;
    if (std::none_of(loops.begin(), loops.end(), [&](const auto& loop) {
          return loop.dim == dim && loop.step == axis.step;
        })) {
      return true;
    }
  }
  return false;
}

// Returns true if this holds for any operand or result of the nodes. Two-level
// summation then adds in another order than the reduction alone.
bool SplitsReductionAxis(std::span<const Node* const> nodes,
                         const std::unordered_set<const Value*>& operands,
                         const std::unordered_set<const Value*>& results,
                         const IterationDomain& domain) {
  if (!domain.has_reduction) return false;
  for (const Node* node : nodes) {
    const Value* output = node->output();
    const ir::IndexMap& map = domain.maps.at(output);
    if (results.contains(output) &&
        SplitsReductionAxis(output->type(), map, domain)) {
      return true;
    }
    if (node->op().fusion == ir::FusionKind::kReduce) continue;
    for (size_t i = 0; i < node->num_inputs(); ++i) {
      if (operands.contains(node->input(i)) &&
          SplitsReductionAxis(node->input(i)->type(),
                              *OperandMap(*node, i, map), domain)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

Clustering::Clustering(const ir::Graph& graph, PassContext& context)
    : graph_(graph),
      context_(context),
      units_(graph),
      is_output_(graph.nodes().size(), false),
      version_(graph.nodes().size(), 0) {
  for (const auto& node : graph.nodes()) {
    is_free_.push_back(passes::IsFree(*node));
    is_of_state_.push_back(IsOfState(*node));
    is_candidate_.push_back(IsFusible(*node) || IsPlacement(*node) ||
                            IsScatter(*node) || IsSeparate(*node));
  }
  for (const ir::Output& output : graph.outputs()) {
    const Node* producer = output.value->producer();
    if (producer != nullptr) is_output_[producer->position()] = true;
  }
}

bool Clustering::IsOfState(const Node& node) const {
  return node.num_outputs() == 1 && node.output()->type().rank() == 0 &&
         node.num_inputs() > 0 &&
         std::all_of(node.inputs().begin(), node.inputs().end(),
                     [&](const Value* input) {
                       const Node* producer = input->producer();
                       if (producer == nullptr) {
                         return input->type().rank() == 0 &&
                                IsState(graph_.inputs()[input->index()].role);
                       }
                       return IsSplat(*producer) ||
                              is_of_state_[producer->position()];
                     });
}

void Clustering::Merge(bool only_free) {
  only_free_ = only_free;
  for (const auto& node : graph_.nodes()) {
    const int cluster = ClusterOf(*node);
    if (cluster < 0) continue;
    const ValueSet operands = Operands(cluster);
    for (int other : Neighbours(cluster)) {
      if (other > cluster) PushCandidate(cluster, operands, other);
    }
  }
  while (!queue_.empty()) {
    const Candidate candidate = queue_.top();
    queue_.pop();
    if (version_[candidate.first] == candidate.first_version &&
        version_[candidate.second] == candidate.second_version) {
      Try(candidate);
    }
  }
}

std::vector<std::vector<Node*>> Clustering::Clusters() const {
  std::vector<std::vector<Node*>> clusters;
  for (const auto& node : graph_.nodes()) {
    const int cluster = ClusterOf(*node);
    if (cluster == node->position()) clusters.push_back(Nodes(cluster));
  }
  return clusters;
}

int Clustering::ClusterOf(const Node& node) const {
  return is_candidate_[node.position()] ? units_.UnitOf(node) : -1;
}

bool Clustering::Extent::IsTooLongForSiblings() const {
  return last - first > kMaxSiblingDistance;
}

void Clustering::Extend(Extent& extent, const Node& node) const {
  if (IsFree(node)) return;
  const int position = node.position();
  if (extent.first < 0 || position < extent.first) extent.first = position;
  extent.last = std::max(extent.last, position);
}

std::string Clustering::Describe(int cluster) const {
  return Nodes(cluster).back()->output()->name();
}

std::vector<int> Clustering::Neighbours(int cluster) const {
  std::vector<int> neighbours;
  // By operand: the loop shapes for which its other readers were added.
  std::unordered_map<const Value*, std::vector<const ir::Shape*>> seen;
  Extent extent;
  for (const Node* node : Nodes(cluster)) Extend(extent, *node);
  for (const Node* node : Nodes(cluster)) {
    for (const Value* input : node->inputs()) {
      if (input->producer() != nullptr) {
        neighbours.push_back(ClusterOf(*input->producer()));
      }
      const bool large = input->type().num_bytes() >= kMinSharedBytes;
      const bool scalar = input->type().num_elements() == 1;
      if (!large && scalar && node->output()->type().num_elements() > 1) {
        continue;
      }
      std::vector<const ir::Shape*>& loops = seen[input];
      if (std::any_of(loops.begin(), loops.end(), [&](const ir::Shape* loop) {
            return large || *loop == LoopShape(*node);
          })) {
        continue;
      }
      loops.push_back(&LoopShape(*node));
      // Skips distant readers: half of a graph may read a value.
      if (extent.IsTooLongForSiblings()) continue;
      for (const Use& use : input->uses()) {
        Extent with = extent;
        Extend(with, *use.node);
        if (with.IsTooLongForSiblings()) continue;
        if (large || LoopShape(*use.node) == LoopShape(*node)) {
          neighbours.push_back(ClusterOf(*use.node));
        }
      }
    }
    for (const Use& use : node->output()->uses()) {
      neighbours.push_back(ClusterOf(*use.node));
    }
  }
  std::sort(neighbours.begin(), neighbours.end());
  neighbours.erase(std::unique(neighbours.begin(), neighbours.end()),
                   neighbours.end());
  std::erase_if(neighbours, [&](int c) { return c < 0 || c == cluster; });
  return neighbours;
}

void Clustering::PushCandidate(int a, const ValueSet& of_a, int b) {
  if (only_free_ && !FreeBeforeConsumer(a, b)) return;
  const int64_t saved = SavedNs(a, of_a, b);
  if (a > b) std::swap(a, b);
  queue_.push({saved, a, b, version_[a], version_[b]});
}

void Clustering::Try(const Candidate& candidate) {
  const int a = candidate.first;
  const int b = candidate.second;
  if (only_free_ && !FreeBeforeConsumer(a, b)) return;
  const std::string reason = WhyNot(a, b);
  const bool accepted = reason.empty();
  if (accepted && !only_free_ &&
      !context_.ConsumeFuel(kFusePass, *Nodes(b).back()->output())) {
    only_free_ = true;  // merges of free nodes need no fuel
    if (!FreeBeforeConsumer(a, b)) return;
  }
  const std::string what =
      Connected(a, b) ? "producer and consumer" : "consumers of one value";
  context_.Record(
      {.pass = kFusePass,
       .subject = Describe(a) + " + " + Describe(b),
       .accepted = accepted,
       .reason = accepted ? what : reason,
       .saved_ns = candidate.saved_ns,
       .modelled_ns = ModelledNs(a) + ModelledNs(b) - candidate.saved_ns,
       .location = Nodes(b).back()->location()});
  if (!accepted) return;
  units_.Merge(a, b);
  ++version_[a];
  ++version_[b];
  const ValueSet operands = Operands(a);
  for (int other : Neighbours(a)) PushCandidate(a, operands, other);
}

// Returns true if one of them consists of free nodes that only the other reads.
bool Clustering::FreeBeforeConsumer(int a, int b) const {
  for (const auto& [producer, consumer] : {std::pair(a, b), {b, a}}) {
    const auto feeds = [&, c = consumer, p = producer](const Node* node) {
      return IsFree(*node) && !IsOutput(*node) &&
             std::all_of(node->output()->uses().begin(),
                         node->output()->uses().end(), [&](const Use& use) {
                           const int user = ClusterOf(*use.node);
                           return user == c || user == p;
                         });
    };
    const std::vector<Node*>& nodes = Nodes(producer);
    if (std::all_of(nodes.begin(), nodes.end(), feeds)) return true;
  }
  return false;
}

bool Clustering::HasOtherReader(const Node& node, int a, int b) const {
  return std::any_of(node.output()->uses().begin(), node.output()->uses().end(),
                     [&](const Use& use) {
                       const int c = ClusterOf(*use.node);
                       return c != a && c != b;
                     });
}

bool Clustering::IsReadOutside(const Node& node, int a, int b) const {
  return IsOutput(node) || HasOtherReader(node, a, b);
}

Clustering::ValueSet Clustering::Operands(int cluster) const {
  ValueSet operands;
  for (const Node* node : Nodes(cluster)) {
    operands.insert(node->inputs().begin(), node->inputs().end());
  }
  return operands;
}

// Returns the bytes of the reads and writes that merging removes. Visits only
// the nodes of b, because a may have hundreds of neighbours.
int64_t Clustering::SharedBytes(int a, const ValueSet& of_a, int b) const {
  int64_t bytes = 0;
  const auto add_passed_on = [&](const Node& node) {
    const int64_t size = ir::KernelBytes(node.output()->type());
    bytes += IsReadOutside(node, a, b) ? size : 2 * size;
  };
  ValueSet seen;
  for (const Node* node : Nodes(b)) {
    const std::vector<Use>& uses = node->output()->uses();
    if (std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
          return ClusterOf(*use.node) == a;
        })) {
      add_passed_on(*node);
    }
    for (const Value* input : node->inputs()) {
      const int c =
          input->producer() == nullptr ? -1 : ClusterOf(*input->producer());
      // Counts each value once, however many nodes of b read it.
      if (c == b || !seen.insert(input).second) continue;
      if (c == a) {
        add_passed_on(*input->producer());
      } else if (of_a.contains(input)) {
        bytes += ir::KernelBytes(input->type());
      }
    }
  }
  return bytes;
}

int64_t Clustering::SavedNs(int a, const ValueSet& of_a, int b) const {
  return ir::KernelNs(SharedBytes(a, of_a, b), context_.target().target());
}

int64_t Clustering::ModelledNs(int cluster) const {
  ValueSet moved;
  for (const Node* node : Nodes(cluster)) {
    for (const Value* input : node->inputs()) {
      if (input->producer() == nullptr ||
          ClusterOf(*input->producer()) != cluster) {
        moved.insert(input);
      }
    }
    if (IsReadOutside(*node, cluster, cluster)) moved.insert(node->output());
  }
  int64_t bytes = 0;
  for (const Value* value : moved) bytes += ir::KernelBytes(value->type());
  return ir::KernelNs(bytes, context_.target().target());
}

std::string Clustering::WhyNot(int a, int b) {
  if (IsScatter(*Nodes(a)[0]) || IsScatter(*Nodes(b)[0])) {
    return "writes operands into slices of its result";
  }
  if (IsSeparate(*Nodes(a)[0]) || IsSeparate(*Nodes(b)[0])) {
    return "unfused kernel";
  }
  if (Nodes(a).size() + Nodes(b).size() > kMaxKernelNodes) {
    return "too many nodes";
  }
  std::vector<const Node*> nodes;
  std::merge(Nodes(a).begin(), Nodes(a).end(), Nodes(b).begin(), Nodes(b).end(),
             std::back_inserter(nodes), [](const Node* x, const Node* y) {
               return x->position() < y->position();
             });
  Extent extent;
  for (const Node* node : nodes) Extend(extent, *node);
  if (!Connected(a, b) && extent.IsTooLongForSiblings()) {
    return "siblings are too far apart";
  }
  // Much cheaper than the rest.
  if (units_.MergeMakesCycle(a, b)) return "would create a cycle";
  ValueSet results, operands;
  size_t reductions = 0;
  for (const Node* node : nodes) {
    reductions += node->op().fusion == ir::FusionKind::kReduce ? 1 : 0;
    for (const Value* input : node->inputs()) {
      const int c =
          input->producer() == nullptr ? -1 : ClusterOf(*input->producer());
      if (c != a && c != b) operands.insert(input);
    }
    if (IsReadOutside(*node, a, b)) results.insert(node->output());
  }
  if (operands.size() + results.size() > kMaxOperands) {
    return "too many operands";
  }
  if (reductions > kMaxReductions) return "too many reductions";
  if (IsOnePlacement(nodes)) return "operands are written to their places";
  IterationDomain domain;
  std::string reason;
  if (!AnalyzeDomain(nodes, results, &domain, &reason)) return reason;
  if (context_.options().eager_rounding &&
      SplitsReductionAxis(nodes, operands, results, domain)) {
    return "tiles would change the order of a sum";
  }
  if (context_.options().eager_rounding && domain.has_reduction &&
      SplitAtConcats(nodes, results, domain).size() > 1) {
    return "parts would change the order of a sum";
  }
  // Otherwise an update that needs norms would compute the scalars of all. It
  // could not be joined with them (fuse_updates.cc).
  if (domain.has_reduction &&
      std::any_of(nodes.begin(), nodes.end(), [&](const Node* node) {
        return is_of_state_[node->position()] && HasOtherReader(*node, a, b);
      })) {
    return "scalar of state that other kernels read";
  }
  return "";
}

bool Clustering::Connected(int a, int b) const {
  for (const auto& [cluster, other] : {std::pair(a, b), {b, a}}) {
    for (const Node* node : Nodes(cluster)) {
      for (const Use& use : node->output()->uses()) {
        if (ClusterOf(*use.node) == other) return true;
      }
    }
  }
  return false;
}

}  // namespace fusor::passes
