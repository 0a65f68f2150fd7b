// Matches, upwards from a ReLU and through values of a single use:
//
//   relu(bn(x))            -> relu="true",  residual="none"   counter bn_relu
//   relu(bn(x) + r)        -> residual="add"                  bn_add_relu
//   relu(bn(x) + bn(x2))   -> residual="norm"                 bn_add_relu and
//                                                             dual_bn_add_relu
//
// Of two normalised operands the one computed later, in a residual network the
// main branch, comes first.

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "ir/cost.h"
#include "ir/support/error.h"
#include "passes/passes.h"
#include "passes/pattern.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

constexpr char kPass[] = "fuse_norm_activation";

struct Match {
  Node* relu = nullptr;
  Node* add = nullptr;        // null without residual
  Node* norm = nullptr;       // the main one
  Node* norm2 = nullptr;      // of residual "norm"
  Value* residual = nullptr;  // of residual "add"
};

// The y of a batch normalisation with neither residual nor ReLU.
Node* PlainNorm(const Value* value) {
  Node* node = value->producer();
  const bool plain = IsOp(node, "batch_norm_train") && value->index() == 0 &&
                     !node->attrs().Bool("relu") &&
                     node->attrs().String("residual") == "none";
  return plain ? node : nullptr;
}

// True when one of `values` is computed from a result of one of `nodes`.
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

std::vector<Value*> Operands(const Match& match) {
  std::vector<Value*> operands = match.norm->inputs();
  if (match.norm2 != nullptr) {
    operands.insert(operands.end(), match.norm2->inputs().begin(),
                    match.norm2->inputs().end());
  } else if (match.residual != nullptr) {
    operands.push_back(match.residual);
  }
  return operands;
}

// One node can only take the place of several if nothing it reads comes from
// one of them: the statistics of a batch may feed the other branch.
bool IsAcyclic(const Match& match) {
  std::vector<const Node*> nodes{match.norm};
  if (match.norm2 != nullptr) nodes.push_back(match.norm2);
  return !DependsOnAny(Operands(match), nodes);
}

class Fuser {
 public:
  Fuser(Graph& graph, PassContext& context) : graph_(graph), context_(context) {
    for (const ir::Output& output : graph.outputs()) {
      outputs_.insert(output.value);
    }
  }

  bool Run() {
    for (const char* name : {"bn_relu", "bn_add_relu", "dual_bn_add_relu"}) {
      context_.counters()[name] += 0;
    }
    std::vector<Node*> relus;
    for (const auto& node : graph_.nodes()) {
      if (IsOp(node.get(), "relu")) relus.push_back(node.get());
    }
    bool changed = false;
    for (Node* relu : relus) {
      Match match;
      if (!Find(relu, match) || !context_.ConsumeFuel(kPass, *relu->output())) {
        continue;
      }
      Rewrite(match);
      changed = true;
    }
    return changed;
  }

 private:
  bool IsPrivate(const Value* value) const {
    return value->uses().size() == 1 && !outputs_.contains(value);
  }

  void Refuse(const Node* relu, std::string reason) {
    context_.Record({.pass = kPass,
                     .subject = relu->output()->name(),
                     .accepted = false,
                     .reason = std::move(reason),
                     .location = relu->location()});
  }

  // Fills in `match`; false, with the reason recorded where there is a
  // normalisation at all, when the ReLU stays.
  bool Find(Node* relu, Match& match) {
    match.relu = relu;
    Value* x = relu->input(0);
    if (Node* norm = PlainNorm(x)) {
      match.norm = norm;
      if (IsPrivate(x)) return true;
      Refuse(relu, x->name() + " has other uses");
      return false;
    }
    if (!IsOp(x->producer(), "add")) return false;
    match.add = x->producer();
    return FindResidual(match);
  }

  bool FindResidual(Match& match) {
    Value* later = match.add->input(0);
    Value* earlier = match.add->input(1);
    if (!IsPlainAndPrivate(later) ||
        (IsPlainAndPrivate(earlier) &&
         earlier->producer()->position() > later->producer()->position())) {
      std::swap(later, earlier);
    }
    if (PlainNorm(later) == nullptr && PlainNorm(earlier) == nullptr) {
      return false;
    }
    if (!IsPlainAndPrivate(later)) {
      Refuse(match.relu, "the normalised operand of the sum has other uses");
      return false;
    }
    if (!IsPrivate(match.add->output())) {
      Refuse(match.relu, match.add->output()->name() + " has other uses");
      return false;
    }
    match.norm = PlainNorm(later);
    if (IsPlainAndPrivate(earlier) && SameAttrs(match.norm, earlier)) {
      match.norm2 = PlainNorm(earlier);
      if (IsAcyclic(match)) return true;
      match.norm2 = nullptr;
    }
    match.residual = earlier;
    if (IsAcyclic(match)) return true;
    Refuse(match.relu, earlier->name() + " depends on the statistics");
    return false;
  }

  bool IsPlainAndPrivate(const Value* value) const {
    return PlainNorm(value) != nullptr && IsPrivate(value);
  }

  static bool SameAttrs(const Node* norm, const Value* other) {
    return norm->attrs() == other->producer()->attrs();
  }

  void Rewrite(const Match& match) {
    ir::Attrs attrs = match.norm->attrs();
    attrs.Set("relu", true);
    attrs.Set("residual", std::string(match.norm2 != nullptr      ? "norm"
                                      : match.residual != nullptr ? "add"
                                                                  : "none"));
    Node* fused = graph_.AddNode("batch_norm_train", Operands(match), attrs,
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

  // Readers of the statistics may stand between the normalisation and the ReLU;
  // the new node then moves up.
  void Replace(const Match& match,
               const std::vector<std::pair<Value*, Value*>>& results) {
    bool ordered = true;
    std::vector<std::pair<Value*, std::string>> names;
    for (const auto& [from, to] : results) {
      for (const ir::Use& use : from->uses()) {
        ordered &= use.node->position() > match.relu->position();
      }
      if (outputs_.contains(from)) outputs_.insert(to);
      graph_.ReplaceAllUses(from, to);
      names.emplace_back(to, from->name());
    }
    std::vector<Node*> replaced{match.relu, match.norm};
    if (match.add != nullptr) replaced.push_back(match.add);
    if (match.norm2 != nullptr) replaced.push_back(match.norm2);
    graph_.EraseAll(replaced);
    for (auto& [value, name] : names) graph_.Rename(value, std::move(name));
    if (!ordered) graph_.SortTopologically();
  }

  void Count(const Match& match, const Node& fused, std::string reason) {
    ++context_.counters()[match.add == nullptr ? "bn_relu" : "bn_add_relu"];
    if (match.norm2 != nullptr) ++context_.counters()["dual_bn_add_relu"];
    const int64_t modelled = ModelledNs(&fused);
    int64_t apart = 0;
    for (const Node* node : {match.norm, match.norm2, match.add, match.relu}) {
      apart += ModelledNs(node);
    }
    context_.Record({.pass = kPass,
                     .subject = match.relu->output()->name(),
                     .accepted = true,
                     .reason = std::move(reason),
                     .saved_ns = apart - modelled,
                     .modelled_ns = modelled,
                     .location = match.norm->location()});
  }

  // As a kernel of its own; 0 for null.
  int64_t ModelledNs(const Node* node) const {
    if (node == nullptr) return 0;
    return ir::KernelNs(ir::NodeBytes(*node), context_.target().target());
  }

  Graph& graph_;
  PassContext& context_;
  std::unordered_set<const Value*> outputs_;
};

}  // namespace

bool FuseNormActivation(Graph& graph, PassContext& context) {
  return Fuser(graph, context).Run();
}

}  // namespace fusor::passes
