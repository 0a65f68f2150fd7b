// The gradient of relu -> max_pool applies the mask before pooling:
//
//   select(compare(y, 0, gt), max_pool_grad(dp, index), 0)
//
// where (p, index) = max_pool(y). The maximum p of a window is the element of y
// that receives the window's gradient, and max_pool_grad is 0 elsewhere. So
// this pass applies the mask at the pooled size:
//
//   max_pool_grad(select(compare(p, 0, gt), dp, 0), index)
//
// That saves reads and writes of the larger tensor, and y need not be stored
// for the backward pass.

#include <cmath>
#include <vector>

#include "passes/passes.h"
#include "passes/simplify/constant_folding.h"

namespace fusor::passes {
namespace {

using ir::Node;
using ir::OpKind;
using ir::Value;

constexpr char kPass[] = "mask_pooled_gradient";

bool IsPositiveZero(const Value& value) {
  const auto x = SplatOf(value);
  return x.has_value() && *x == 0 && !std::signbit(*x);
}

struct Match {
  Node* pool = nullptr;
  Node* grad = nullptr;
  Node* compare = nullptr;
};

bool FindMatch(const Node& select, Match* match) {
  if (select.kind() != OpKind::kSelect || !IsPositiveZero(*select.input(2))) {
    return false;
  }
  match->compare = select.input(0)->producer();
  match->grad = select.input(1)->producer();
  if (!IsOp(match->compare, OpKind::kCompare) ||
      match->compare->attrs().String("direction") != "gt" ||
      SplatOf(*match->compare->input(1)) != 0.0 ||
      !IsOp(match->grad, OpKind::kMaxPoolGrad) ||
      match->grad->output()->uses().size() != 1) {
    return false;
  }
  match->pool = match->grad->input(1)->producer();
  return IsOp(match->pool, OpKind::kMaxPool) &&
         match->grad->input(1) == match->pool->output(1) &&
         match->compare->input(0) == match->pool->input(0);
}

// Adds the new max_pool_grad before `select` and at its location: it now is the
// ReLU's gradient.
Value* Rewrite(ir::Graph& graph, Node& select, const Match& match) {
  Value* p = match.pool->output(0);
  Value* dp = match.grad->input(0);
  const ir::Location& at = select.location();
  const auto zero_like = [&](const Value& value) {
    return graph
        .AddNode("constant", {}, SplatAttrs(value.type(), 0), at, &select)
        ->output();
  };
  Value* zero = zero_like(*dp);
  Value* edge = p->type() == dp->type() ? zero : zero_like(*p);
  Value* on =
      graph.AddNode("compare", {p, edge}, match.compare->attrs(), at, &select)
          ->output();
  Value* masked =
      graph.AddNode("select", {on, dp, zero}, {}, at, &select)->output();
  return graph
      .AddNode("max_pool_grad", {masked, match.grad->input(1)},
               match.grad->attrs(), at, &select)
      ->output();
}

}  // namespace

bool MaskPooledGradient(ir::Graph& graph, PassContext& context) {
  std::vector<std::pair<Node*, Match>> found;
  for (const auto& node : graph.nodes()) {
    Match match;
    if (FindMatch(*node, &match) && !graph.IsOutput(match.grad->output()) &&
        context.ConsumeFuel(kPass, *node->output())) {
      found.emplace_back(node.get(), match);
    }
  }
  std::vector<Node*> dead;
  for (const auto& [select, match] : found) {
    Value* dx = Rewrite(graph, *select, match);
    context.Record({.pass = kPass,
                    .subject = select->output()->name(),
                    .accepted = true,
                    .reason = "masked before " + match.grad->output()->name(),
                    .location = select->location()});
    graph.ReplaceAllUses(select->output(), dx);
    dead.push_back(select);
    dead.push_back(match.grad);
  }
  graph.EraseAll(dead);
  return !dead.empty();
}

}  // namespace fusor::passes
