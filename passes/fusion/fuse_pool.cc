// Fuses a pooling whose kernel is generated with the elementwise ops around it.
// One kernel for
//
//   y -> normalise, ReLU -> z -> max_pool -> p, index
//
// reads y and writes p and the index; z is not stored. Each window recomputes
// its elements of z from cached elements of y. The same loop computes the
// max_pool_gathers of values that z is computed from. One kernel for
//
//   dp, index -> max_pool_grad -> dz -> mask, a dz + b y + c -> dy
//
// reads dp, the index and y, and writes dy. z, dz and the values between dz and
// dy must have no other reader. Other elementwise operands may have other
// readers, and are then computed twice.

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/op.h"
#include "ir/support/str.h"
#include "ir/target/cost.h"
#include "passes/fusion/iteration_domain.h"
#include "passes/fusion/outline.h"
#include "passes/library/candidate.h"
#include "passes/passes.h"
#include "passes/simplify/dead_code.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::Use;
using ir::Value;

constexpr char kFusePoolPass[] = "fuse_pool";
// Maximum number of body nodes: every window recomputes them.
constexpr size_t kMaxNodes = 64;

// Returns true for a scalar, or a vector of channels, broadcast to an image.
bool IsSpread(const Node& node) {
  if (node.kind() != OpKind::kBroadcast) return false;
  const std::vector<int64_t>& dims = node.attrs().Ints("dims");
  return node.output()->type().rank() == 4 &&
         (dims.empty() || dims == std::vector<int64_t>{1});
}

// Returns true for nodes that a pooling kernel can compute per element.
bool MayJoin(const Node* node) {
  return node != nullptr &&
         (node->op().fusion == ir::FusionKind::kElementwise || IsSplat(*node) ||
          IsSpread(*node));
}

// A pooling and the nodes fused with it.
class Region {
 public:
  Region(Graph& graph, Node& pool) : graph_(graph), pool_(pool) {
    nodes_.insert(&pool);
    heads_.push_back(&pool);
    AddGathers();
    AddPrologues();
    if (pool.kind() == OpKind::kMaxPoolGrad ||
        pool.kind() == OpKind::kAvgPoolGrad)
      AddEpilogue();
  }

  bool IsAlone() const { return nodes_.size() == 1; }
  const std::vector<Node*>& heads() const { return heads_; }
  // Describes what is fused with the pooling. If nothing is, returns the
  // rejection reason; empty if there was no candidate.
  std::string Reason() const {
    if (IsAlone()) return rejected_;
    std::vector<std::string> parts;
    if (has_prologue_) parts.push_back("producers");
    if (heads_.size() > 1) parts.push_back("gathers");
    if (end_ != nullptr) parts.push_back("consumers");
    return "one kernel with " +
           Join(parts, ", ", [](const std::string& part) { return part; });
  }
  bool has_prologue() const { return has_prologue_; }
  bool has_epilogue() const { return end_ != nullptr; }
  // Bytes that are no longer written and read.
  int64_t saved_bytes() const { return saved_; }

  // Replaces the nodes by a fusion and returns it.
  Node* Outline(bool eager) const {
    OutlineRequest request{.results = Results(),
                           .position = end_ != nullptr ? end_ : heads_.back(),
                           .location = pool_.location(),
                           .eager_rounding = eager};
    for (const auto& node : graph_.nodes()) {
      if (nodes_.contains(node.get())) request.members.push_back(node.get());
    }
    return passes::Outline(graph_, {&request, 1})[0];
  }

 private:
  // Adds the gathers from the same windows at the pooling's index.
  void AddGathers() {
    if (pool_.kind() != OpKind::kMaxPool) return;
    for (const Use& use : pool_.output(1)->uses()) {
      const Value* x = use.node->input(0);
      if (use.node->kind() == OpKind::kMaxPoolGather && use.operand == 1 &&
          use.node->attrs() == pool_.attrs() &&
          x->type().shape == pool_.input(0)->type().shape &&
          IsBefore(x, pool_)) {
        nodes_.insert(use.node);
        heads_.push_back(use.node);
      }
    }
  }

  static bool IsBefore(const Value* value, const Node& node) {
    return value->producer() == nullptr ||
           value->producer()->position() < node.position();
  }

  bool IsReadByHeadsAlone(const Value& value) const {
    return !graph_.IsOutput(&value) &&
           std::all_of(
               value.uses().begin(), value.uses().end(), [&](const Use& use) {
                 return std::find(heads_.begin(), heads_.end(), use.node) !=
                        heads_.end();
               });
  }

  void AddPrologues() {
    for (const Node* head :
         std::vector<const Node*>(heads_.begin(), heads_.end())) {
      const Value* operand = head->input(0);
      if (!MayJoin(operand->producer()) ||
          nodes_.contains(operand->producer())) {
        continue;
      }
      if (!IsReadByHeadsAlone(*operand)) {
        rejected_ = "%" + operand->name() + " has other uses";
      } else if (Take(*operand)) {
        has_prologue_ = true;
        saved_ += 2 * ir::KernelBytes(operand->type());
      }
    }
  }

  // Adds the nodes that compute the value, up to values that must be read. Sets
  // the rejection reason and returns false if that is not possible.
  bool Take(const Value& value) {
    std::unordered_set<const Node*> nodes = nodes_;
    const std::string reason = Collect(value, nodes);
    if (!reason.empty()) {
      rejected_ = reason;
      return false;
    }
    nodes_ = std::move(nodes);
    return true;
  }

  std::string Collect(const Value& value,
                      std::unordered_set<const Node*>& nodes) const {
    const Node* node = value.producer();
    if (!MayJoin(node)) {
      if (value.type().dtype == ir::DType::kBool) {
        return "%" + value.name() + " is a bitmask";
      }
      if (node != nullptr && IsFree(*node)) {
        return "%" + value.name() + " would have to be stored";
      }
      return "";
    }
    if (!nodes.insert(node).second) return "";
    if (nodes.size() > kMaxNodes) return "too many nodes";
    if (IsSpread(*node)) return "";
    for (const Value* input : node->inputs()) {
      std::string reason = Collect(*input, nodes);
      if (!reason.empty()) return reason;
    }
    return "";
  }

  // Returns the only node that reads the value if that is elementwise,
  // otherwise null.
  Node* OnlyReader(const Value& value) const {
    if (graph_.IsOutput(&value) || value.uses().empty()) return nullptr;
    Node* reader = value.uses()[0].node;
    const bool only =
        std::all_of(value.uses().begin(), value.uses().end(),
                    [&](const Use& use) { return use.node == reader; });
    return only && reader->op().fusion == ir::FusionKind::kElementwise
               ? reader
               : nullptr;
  }

  // Follows the gradient through single elementwise readers. The epilogue ends
  // with the last value that has no more bytes than the gradient.
  void AddEpilogue() {
    std::unordered_set<const Node*> nodes = nodes_;
    const Value* value = pool_.output();
    const int64_t bytes = ir::KernelBytes(value->type());
    while (Node* reader = OnlyReader(*value)) {
      nodes.insert(reader);
      for (const Value* input : reader->inputs()) {
        if (input == value) continue;
        std::string reason = Collect(*input, nodes);
        if (reason.empty() && DependsOnPool(*input)) {
          reason = "%" + input->name() + " depends on the pool";
        }
        if (reason.empty()) continue;
        rejected_ = reason;
        return;
      }
      value = reader->output();
      if (value->type().dtype == ir::DType::kBool ||
          ir::KernelBytes(value->type()) > bytes) {
        continue;
      }
      end_ = reader;
      nodes_ = nodes;
    }
    if (end_ != nullptr) saved_ += 2 * bytes;
  }

  bool DependsOnPool(const Value& value) const {
    std::vector<const Node*> open{value.producer()};
    std::unordered_set<const Node*> seen;
    while (!open.empty()) {
      const Node* node = open.back();
      open.pop_back();
      if (node == nullptr || node->position() < pool_.position() ||
          !seen.insert(node).second) {
        continue;
      }
      if (node == &pool_) return true;
      for (const Value* input : node->inputs()) {
        open.push_back(input->producer());
      }
    }
    return false;
  }

  // Returns the results that are read outside the fusion, in order.
  std::vector<Value*> Results() const {
    if (end_ != nullptr) return {end_->output()};
    std::vector<Value*> results;
    for (const Node* head : heads_) {
      for (size_t i = 0; i < head->num_outputs(); ++i) {
        const Value* value = head->output(i);
        const bool inside =
            !graph_.IsOutput(value) &&
            std::all_of(
                value->uses().begin(), value->uses().end(),
                [&](const Use& use) { return nodes_.contains(use.node); });
        if (!inside) results.push_back(head->output(i));
      }
    }
    return results;
  }

  Graph& graph_;
  Node& pool_;
  std::unordered_set<const Node*> nodes_;
  std::vector<Node*> heads_;  // the pooling and the gathers
  Node* end_ = nullptr;       // last node of the epilogue, or null
  bool has_prologue_ = false;
  std::string rejected_;
  int64_t saved_ = 0;
};

}  // namespace

bool FusePool(Graph& graph, PassContext& context) {
  std::vector<Node*> pools;
  for (const auto& node : graph.nodes()) {
    if (node->HasTrait(ir::OpTrait::kPooling) &&
        IsGenerated(*node, context.target())) {
      pools.push_back(node.get());
    }
  }
  if (pools.empty()) return false;
  bool changed = EraseDeadNodes(graph);  // dead readers would prevent fusion
  std::unordered_set<const Node*> joined;
  for (Node* pool : pools) {
    if (joined.contains(pool)) continue;
    Region region(graph, *pool);
    if (region.Reason().empty()) continue;
    if (!region.IsAlone() &&
        !context.ConsumeFuel(kFusePoolPass, *pool->output())) {
      break;
    }
    const ir::Target& target = context.target().target();
    Decision decision{.pass = kFusePoolPass,
                      .subject = pool->output()->name(),
                      .accepted = !region.IsAlone(),
                      .reason = region.Reason(),
                      .saved_ns = ir::KernelNs(region.saved_bytes(), target) -
                                  ir::KernelNs(0, target),
                      .location = pool->location()};
    if (decision.accepted) {
      joined.insert(region.heads().begin(), region.heads().end());
      const Node* fusion = region.Outline(context.options().eager_rounding);
      decision.modelled_ns = ir::KernelNs(ir::NodeBytes(*fusion), target);
      auto& counters = context.counters();
      counters["pool_prologues"] += region.has_prologue() ? 1 : 0;
      counters["pool_epilogues"] += region.has_epilogue() ? 1 : 0;
    }
    changed |= decision.accepted;
    context.Record(std::move(decision));
  }
  return changed;
}

}  // namespace fusor::passes
