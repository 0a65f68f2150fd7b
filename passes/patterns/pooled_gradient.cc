// Moves work on a max-pool's gradient to the pooled size.
//
// mask_pooled_gradient: the gradient of relu -> max_pool applies the mask after
// the max-pool's gradient:
//
//   select(compare(y, 0, gt), max_pool_grad(dp, index), 0)
//
// where (p, index) = max_pool(y). The maximum p of a window is the element of y
// that receives the window's gradient, and max_pool_grad is 0 elsewhere. So
// this pass applies the mask first:
//
//   max_pool_grad(select(compare(p, 0, gt), dp, 0), index)
//
// That saves reads and writes of the larger tensor, and y need not be stored
// for the backward pass.
//
// sum_pooled_gradient: given (p, index) = max_pool(z) and f elementwise and
// linear in the gradient,
//
//   reduce_sum(f(max_pool_grad(dp, index), y))  over rows and columns
//
// is rewritten. The gradient is zero except at the maxima, where it is the sum
// of dp over the windows with that maximum. So the result is
//
//   reduce_sum(f(dp, max_pool_gather(y, index)))
//
// because max_pool_grad is the adjoint of max_pool_gather. For z itself the
// gathered values are p. The sum of the gradient alone, e.g. for a
// convolution's bias, reads one tensor of the pooled size instead of one of the
// image's size; the sums of a normalisation's gradient read two. The gather is
// inserted right after the max-pool, whose generated kernel reads y where it
// finds the maximum. Libraries have no such op.
//
// Sums over values that depend on these sums, e.g. the gradient of a bias
// before the normalisation, are not rewritten.
//
// The summation order changes, and the gradient is not rounded to 16 bit where
// windows overlap. So the pass does nothing with eager rounding.

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/op.h"
#include "ir/target/cost.h"
#include "passes/fusion/iteration_domain.h"
#include "passes/library/candidate.h"
#include "passes/passes.h"
#include "passes/simplify/constant_folding.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::Value;

constexpr char kMaskPass[] = "mask_pooled_gradient";
constexpr char kSumPass[] = "sum_pooled_gradient";

bool IsPositiveZero(const Value& value) {
  const auto x = SplatOf(value);
  return x.has_value() && *x == 0 && !std::signbit(*x);
}

// --- Masks -------------------------------------------------------------------

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
Value* Rewrite(Graph& graph, Node& select, const Match& match) {
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

// --- Sums --------------------------------------------------------------------

bool IsElementwise(const Node* node) {
  return node != nullptr && node->op().fusion == ir::FusionKind::kElementwise;
}

bool IsFloatCast(const Node& node) {
  return node.kind() == OpKind::kCast &&
         ir::IsFloat(node.output()->type().dtype);
}

// Returns true for a sum over rows and columns of images, and possibly over
// other dimensions.
bool SumsImages(const Node& node) {
  if (node.kind() != OpKind::kReduce || node.attrs().String("kind") != "sum") {
    return false;
  }
  const std::vector<int64_t>& dims = node.attrs().Ints("dims");
  return std::count_if(dims.begin(), dims.end(),
                       [](int64_t dim) { return dim >= 2; }) == 2 &&
         node.input(0)->type().rank() == 4;
}

// One max_pool_grad and the sums that depend on it.
class PooledSums {
 public:
  // `gathers`: the target's max-pool can gather other tensors at its maxima.
  PooledSums(Graph& graph, Node& grad, bool gathers)
      : graph_(graph),
        grad_(grad),
        pool_(*grad.input(1)->producer()),
        gathers_(gathers) {}

  // Returns the rejection reason; empty if the sums can be computed at the
  // pooled size.
  std::string WhyNot() {
    FindLinear();
    std::unordered_set<const Value*> later;  // depends on the sums
    for (const auto& node : graph_.nodes()) {
      const bool sums = node->op().fusion == ir::FusionKind::kReduce &&
                        reached_.contains(node->input(0));
      const bool linear =
          sums && SumsImages(*node) && linear_.contains(node->input(0));
      const auto is_later = [&](const Value* x) { return later.contains(x); };
      if (linear) {
        sums_.push_back(node.get());
      } else if (std::none_of(node->inputs().begin(), node->inputs().end(),
                              is_later)) {
        if (sums) return "%" + node->output()->name() + " is not linear in it";
        continue;
      }
      for (size_t i = 0; i < node->num_outputs(); ++i) {
        later.insert(node->output(i));
      }
    }
    for (const Node* sum : sums_) {
      std::string reason = WhyNotPooled(sum->input(0));
      if (!reason.empty()) return reason;
    }
    return SavedBytes() > 0 ? "" : "would not reduce memory traffic";
  }

  const std::vector<Node*>& sums() const { return sums_; }

  // Returns the bytes that the kernels of the sums and of the max-pool save.
  int64_t SavedBytes() const {
    int64_t saved = ir::KernelBytes(grad_.output()->type()) -
                    ir::KernelBytes(grad_.input(0)->type());
    for (const Value* value : gathered_) {
      saved += ir::KernelBytes(value->type());
      if (value == pool_.input(0)) {
        saved -= ir::KernelBytes(pool_.output()->type());
      } else {  // written and read
        saved -= 2 * ir::KernelBytes(PooledType(*value));
      }
    }
    return saved;
  }

  void Rewrite() {
    for (Node* sum : sums_) {
      before_ = sum;
      Value* pooled = graph_
                          .AddNode("reduce", {Pooled(sum->input(0))},
                                   sum->attrs(), sum->location(), sum)
                          ->output();
      pooled->set_type(sum->output()->type());
      const std::string name = sum->output()->name();
      graph_.ReplaceAllUses(sum->output(), pooled);
      graph_.Erase(sum);
      graph_.Rename(pooled, name);
    }
  }

 private:
  // Finds the values that elementwise ops compute from the gradient, and those
  // of them that are linear in it.
  void FindLinear() {
    linear_.insert(grad_.output());
    reached_.insert(grad_.output());
    for (size_t i = grad_.position() + 1; i < graph_.nodes().size(); ++i) {
      const Node& node = *graph_.nodes()[i];
      if (!IsElementwise(&node)) continue;
      const auto reached = [&](const Value* x) { return reached_.contains(x); };
      if (std::any_of(node.inputs().begin(), node.inputs().end(), reached)) {
        reached_.insert(node.output());
      }
      if (IsLinear(node)) linear_.insert(node.output());
    }
  }

  bool IsLinear(const Node& node) const {
    const auto linear = [&](size_t i) {
      return linear_.contains(node.input(i));
    };
    const auto apart = [&](size_t i) {
      return !reached_.contains(node.input(i));
    };
    if (node.kind() == OpKind::kMul) {
      return (linear(0) && apart(1)) || (apart(0) && linear(1));
    }
    if (node.kind() == OpKind::kDiv) return linear(0) && apart(1);
    if (node.kind() == OpKind::kSelect) {
      return apart(0) && linear(1) && IsPositiveZero(*node.input(2));
    }
    return (node.kind() == OpKind::kNeg || IsFloatCast(node)) && linear(0);
  }

  // Returns why `value`, of the image's size, cannot be computed at the pooled
  // size; empty if it can. Collects the values to gather for it.
  std::string WhyNotPooled(const Value* value) {
    if (!seen_.insert(value).second || value == grad_.output()) return "";
    const Node* node = value->producer();
    if (node != nullptr && (IsSplat(*node) || IsSpread(*node))) return "";
    if (value == pool_.input(0)) {
      gathered_.push_back(value);
      return "";
    }
    if (IsElementwise(node)) {
      for (const Value* input : node->inputs()) {
        std::string reason = WhyNotPooled(input);
        if (!reason.empty()) return reason;
      }
      return "";
    }
    if (!gathers_ || (node != nullptr && (node->position() > pool_.position() ||
                                          IsFusible(*node)))) {
      return "%" + value->name() + " cannot be gathered by the max-pool";
    }
    if (!ir::IsFloat(value->type().dtype)) {
      return "%" + value->name() + " is not a floating-point image";
    }
    gathered_.push_back(value);
    return "";
  }

  // Returns true for a broadcast that is constant over rows and columns.
  static bool IsSpread(const Node& node) {
    if (node.kind() != OpKind::kBroadcast) return false;
    const std::vector<int64_t>& dims = node.attrs().Ints("dims");
    return std::none_of(dims.begin(), dims.end(),
                        [](int64_t dim) { return dim >= 2; });
  }

  ir::TensorType PooledType(const Value& value) const {
    ir::TensorType type = grad_.input(0)->type();
    type.dtype = value.type().dtype;
    return type;
  }

  Value* Pooled(Value* value) {
    if (value == grad_.output()) return grad_.input(0);
    if (value == pool_.input(0)) return pool_.output();
    const auto found = pooled_.find(value);
    if (found != pooled_.end()) return found->second;
    const Node* node = value->producer();
    Value* result = nullptr;
    if (node != nullptr && IsSplat(*node)) {
      result =
          graph_
              .AddNode("constant", {},
                       SplatAttrs(PooledType(*value), *SplatAttribute(*value)),
                       node->location(), before_)
              ->output();
    } else if (node != nullptr && IsSpread(*node)) {
      ir::Attrs attrs = node->attrs();
      attrs.Set("shape", PooledType(*value).shape);
      result = graph_
                   .AddNode("broadcast", node->inputs(), std::move(attrs),
                            node->location(), before_)
                   ->output();
    } else if (IsElementwise(node)) {
      std::vector<Value*> inputs;
      for (Value* input : node->inputs()) inputs.push_back(Pooled(input));
      result = graph_
                   .AddNode(node->kind(), std::move(inputs), node->attrs(),
                            node->location(), before_)
                   ->output();
    } else {
      result = Gather(value);
    }
    result->set_type(PooledType(*value));
    return pooled_[value] = result;
  }

  Value* Gather(Value* value) {
    const size_t next = pool_.position() + 1;
    return graph_
        .AddNode("max_pool_gather", {value, pool_.output(1)}, pool_.attrs(),
                 pool_.location(), graph_.nodes()[next].get())
        ->output();
  }

  Graph& graph_;
  const Node& grad_;
  const Node& pool_;
  const bool gathers_;
  std::unordered_set<const Value*> reached_, linear_;
  std::vector<Node*> sums_;
  std::unordered_set<const Value*> seen_;
  std::vector<const Value*> gathered_;  // operands, of the image's size
  std::unordered_map<const Value*, Value*> pooled_;
  Node* before_ = nullptr;  // insertion point of new nodes
};

// Returns true if `grad` reads the index of the max_pool that it
// differentiates.
bool HasPool(const Node& grad) {
  const Node* pool = grad.input(1)->producer();
  return IsOp(pool, OpKind::kMaxPool) && grad.input(1) == pool->output(1) &&
         pool->input(0)->type().shape == grad.output()->type().shape &&
         pool->attrs().Ints("window") == grad.attrs().Ints("window") &&
         pool->attrs().Ints("stride") == grad.attrs().Ints("stride") &&
         pool->attrs().Ints("pad") == grad.attrs().Ints("pad");
}

}  // namespace

bool MaskPooledGradient(Graph& graph, PassContext& context) {
  std::vector<std::pair<Node*, Match>> found;
  for (const auto& node : graph.nodes()) {
    Match match;
    if (FindMatch(*node, &match) && !graph.IsOutput(match.grad->output()) &&
        context.ConsumeFuel(kMaskPass, *node->output())) {
      found.emplace_back(node.get(), match);
    }
  }
  std::vector<Node*> dead;
  for (const auto& [select, match] : found) {
    Value* dx = Rewrite(graph, *select, match);
    context.Record({.pass = kMaskPass,
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

bool SumPooledGradient(Graph& graph, PassContext& context) {
  if (context.options().eager_rounding) return false;
  std::vector<Node*> gradients;
  for (const auto& node : graph.nodes()) {
    if (node->kind() == OpKind::kMaxPoolGrad && HasPool(*node)) {
      gradients.push_back(node.get());
    }
  }
  bool changed = false;
  for (Node* grad : gradients) {
    PooledSums sums(graph, *grad, IsGenerated(*grad, context.target()));
    const std::string reason = sums.WhyNot();
    if (sums.sums().empty()) continue;
    const bool accepted = reason.empty();
    if (accepted && !context.ConsumeFuel(kSumPass, *grad->output())) break;
    const ir::Target& target = context.target().target();
    context.Record(
        {.pass = kSumPass,
         .subject = grad->output()->name(),
         .accepted = accepted,
         .reason = accepted ? "its sums have the pooled size" : reason,
         .saved_ns = accepted ? ir::KernelNs(sums.SavedBytes(), target) -
                                    ir::KernelNs(0, target)
                              : 0,
         .location = grad->location()});
    if (!accepted) continue;
    context.counters()["pooled_sums"] +=
        static_cast<int64_t>(sums.sums().size());
    sums.Rewrite();
    changed = true;
  }
  return changed;
}

}  // namespace fusor::passes
