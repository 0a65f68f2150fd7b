// The pass fuse_norm_activation fuses each NormActivation into one op:
//
//   relu(bn(x))            -> relu="true",  residual="none"   counter bn_relu
//   relu(bn(x) + r)        -> residual="add"                  bn_add_relu
//   relu(bn(x) + bn(x2))   -> residual="norm"                 bn_add_relu and
//                                                             dual_bn_add_relu

#include "passes/patterns/norm_activation.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/target/cost.h"
#include "passes/passes.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::Value;

constexpr char kFuseNormActivationPass[] = "fuse_norm_activation";
constexpr size_t kMean = 1;      // result of batch_norm_train
constexpr size_t kGradMean = 4;  // operand of batch_norm_grad

// Returns the normalisation of `value`, its y, if it has neither residual nor
// ReLU.
Node* PlainNorm(const Value* value) {
  Node* node = value->producer();
  const bool plain = IsOp(node, OpKind::kBatchNormTrain) &&
                     value->index() == 0 && !node->attrs().Bool("relu") &&
                     node->attrs().String("residual") == "none";
  return plain ? node : nullptr;
}

// Returns true if one of `values` is computed from a result of one of `nodes`.
bool DependsOnAny(const std::vector<Value*>& values,
                  const std::vector<const Node*>& nodes) {
  int first = nodes[0]->position();
  for (const Node* node : nodes) first = std::min(first, node->position());
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> stack;
  const auto push = [&](const Value* value) {
    const Node* node = value->producer();
    if (node == nullptr || node->position() < first) return;
    if (seen.insert(node).second) stack.push_back(node);
  };
  for (const Value* value : values) push(value);
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    if (std::find(nodes.begin(), nodes.end(), node) != nodes.end()) {
      return true;
    }
    for (const Value* value : node->inputs()) push(value);
  }
  return false;
}

// One node can replace several only if it reads no value computed from them:
// the statistics of a batch may feed the other branch.
bool IsAcyclic(const NormActivation& match) {
  std::vector<const Node*> nodes{match.norm};
  if (match.norm2 != nullptr) nodes.push_back(match.norm2);
  return !DependsOnAny(match.Operands(), nodes);
}

bool SameAttrs(const Node* norm, const Value* other) {
  return norm->attrs() == other->producer()->attrs();
}

class Fuser {
 public:
  Fuser(Graph& graph, PassContext& context)
      : graph_(graph), context_(context) {}

  bool Run() {
    for (const char* name : {"bn_relu", "bn_add_relu", "dual_bn_add_relu"}) {
      context_.counters()[name] += 0;
    }
    const NormActivations matches(graph_);
    std::vector<Node*> relus;
    for (const auto& node : graph_.nodes()) {
      if (node->kind() == OpKind::kRelu) relus.push_back(node.get());
    }
    bool changed = false;
    for (Node* relu : relus) {
      const NormActivation match = matches.Of(relu);
      if (!match.rejection.empty()) Reject(*relu, match.rejection);
      if (match.norm == nullptr ||
          !context_.ConsumeFuel(kFuseNormActivationPass, *relu->output())) {
        continue;
      }
      Rewrite(match);
      changed = true;
    }
    return changed;
  }

 private:
  void Reject(const Node& relu, std::string reason) {
    context_.Record({.pass = kFuseNormActivationPass,
                     .subject = relu.output()->name(),
                     .accepted = false,
                     .reason = std::move(reason),
                     .location = relu.location()});
  }

  void Rewrite(const NormActivation& match) {
    ir::Attrs attrs = match.norm->attrs();
    attrs.Set("relu", true);
    attrs.Set("residual", std::string(match.norm2 != nullptr      ? "norm"
                                      : match.residual != nullptr ? "add"
                                                                  : "none"));
    Node* fused = graph_.AddNode("batch_norm_train", match.Operands(), attrs,
                                 match.norm->location(), match.relu);
    fused->output()->set_type(match.relu->output()->type());
    Count(match, *fused, "residual " + attrs.String("residual"));
    std::vector<std::pair<Value*, Value*>> results{
        {match.relu->output(), fused->output(0)},
        {match.norm->output(1), fused->output(1)},
        {match.norm->output(2), fused->output(2)}};
    if (match.norm2 != nullptr) {
      results.emplace_back(match.norm2->output(1), fused->output(3));
      results.emplace_back(match.norm2->output(2), fused->output(4));
    }
    const std::string mask_name = match.relu->output()->name() + "_mask";
    Replace(match, results);
    if (match.add != nullptr) {
      graph_.Rename(fused->output(fused->num_outputs() - 1), mask_name);
    }
  }

  // Readers of the statistics may be positioned between the normalisation and
  // the ReLU, where the new node is; the graph is then sorted again.
  void Replace(const NormActivation& match,
               const std::vector<std::pair<Value*, Value*>>& results) {
    bool ordered = true;
    std::vector<std::pair<Value*, std::string>> names;
    for (const auto& [from, to] : results) {
      for (const ir::Use& use : from->uses()) {
        ordered &= use.node->position() > match.relu->position();
      }
      graph_.ReplaceAllUses(from, to);
      names.emplace_back(to, from->name());
    }
    graph_.EraseAll(match.Nodes());
    for (auto& [value, name] : names) graph_.Rename(value, std::move(name));
    if (!ordered) graph_.SortTopologically();
  }

  void Count(const NormActivation& match, const Node& fused,
             std::string reason) {
    ++context_.counters()[match.add == nullptr ? "bn_relu" : "bn_add_relu"];
    if (match.norm2 != nullptr) ++context_.counters()["dual_bn_add_relu"];
    const int64_t modelled = ModelledNs(fused);
    int64_t apart = 0;
    for (const Node* node : match.Nodes()) apart += ModelledNs(*node);
    context_.Record({.pass = kFuseNormActivationPass,
                     .subject = match.relu->output()->name(),
                     .accepted = true,
                     .reason = std::move(reason),
                     .saved_ns = apart - modelled,
                     .modelled_ns = modelled,
                     .location = match.norm->location()});
  }

  // Estimated time of the node as a separate kernel.
  int64_t ModelledNs(const Node& node) const {
    return ir::KernelNs(ir::NodeBytes(node), context_.target().target());
  }

  Graph& graph_;
  PassContext& context_;
};

}  // namespace

std::vector<Value*> NormActivation::Operands() const {
  std::vector<Value*> operands = norm->inputs();
  if (norm2 != nullptr) {
    operands.insert(operands.end(), norm2->inputs().begin(),
                    norm2->inputs().end());
  } else if (residual != nullptr) {
    operands.push_back(residual);
  }
  return operands;
}

std::vector<Node*> NormActivation::Nodes() const {
  std::vector<Node*> nodes;
  for (Node* node : {relu, add, norm, norm2}) {
    if (node != nullptr) nodes.push_back(node);
  }
  return nodes;
}

std::vector<Node*> NormActivation::Gradients() const {
  std::vector<Node*> gradients;
  for (const Node* part : {norm, norm2}) {
    if (part == nullptr) continue;
    for (const ir::Use& use : part->output(kMean)->uses()) {
      if (NormOfGradient(*use.node) != part) continue;
      gradients.push_back(use.node);
      Node* masked = use.node->input(0)->producer();
      if (IsOp(masked, OpKind::kSelect) && gradients.size() == 1) {
        gradients.push_back(masked);
      }
    }
  }
  return gradients;
}

bool NormActivations::IsPrivate(const Value* value) const {
  return value->uses().size() == 1 &&
         std::none_of(graph_.outputs().begin(), graph_.outputs().end(),
                      [&](const ir::Output& o) { return o.value == value; });
}

bool NormActivations::IsPlainAndPrivate(const Value* value) const {
  return PlainNorm(value) != nullptr && IsPrivate(value);
}

NormActivation NormActivations::Of(Node* relu) const {
  NormActivation match;
  match.relu = relu;
  if (!IsOp(relu, OpKind::kRelu)) return match;
  Value* x = relu->input(0);
  if (Node* norm = PlainNorm(x)) {
    if (IsPrivate(x)) {
      match.norm = norm;
    } else {
      match.rejection = x->name() + " has other uses";
    }
    return match;
  }
  if (!IsOp(x->producer(), OpKind::kAdd)) return match;
  match.add = x->producer();
  FindResidual(match);
  return match;
}

// Sets the normalisations, or the rejection reason.
void NormActivations::FindResidual(NormActivation& match) const {
  Value* later = match.add->input(0);
  Value* earlier = match.add->input(1);
  if (!IsPlainAndPrivate(later) ||
      (IsPlainAndPrivate(earlier) &&
       earlier->producer()->position() > later->producer()->position())) {
    std::swap(later, earlier);
  }
  if (PlainNorm(later) == nullptr && PlainNorm(earlier) == nullptr) return;
  if (!IsPlainAndPrivate(later)) {
    match.rejection = "the normalised operand of the sum has other uses";
    return;
  }
  if (!IsPrivate(match.add->output())) {
    match.rejection = match.add->output()->name() + " has other uses";
    return;
  }
  match.norm = PlainNorm(later);
  if (IsPlainAndPrivate(earlier) && SameAttrs(match.norm, earlier)) {
    match.norm2 = PlainNorm(earlier);
    if (IsAcyclic(match)) return;
    match.norm2 = nullptr;
  }
  match.residual = earlier;
  if (IsAcyclic(match)) return;
  match.norm = nullptr;
  match.rejection = earlier->name() + " depends on the statistics";
}

const Node* NormOfGradient(const Node& node) {
  if (node.kind() != OpKind::kBatchNormGrad) return nullptr;
  const Node* norm = node.input(kGradMean)->producer();
  return IsOp(norm, OpKind::kBatchNormTrain) ? norm : nullptr;
}

bool FuseNormActivation(Graph& graph, PassContext& context) {
  return Fuser(graph, context).Run();
}

}  // namespace fusor::passes
