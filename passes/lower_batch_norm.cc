// Batch normalisation as reductions and elementwise ops.
//
// With scale = gamma * rstd and shift = beta - mean * scale per channel:
//
//   forward   y  = relu?(x * scale + shift [+ r | + x2 * scale2 + shift2])
//   backward  g  = dy where y > 0
//             dx = gamma * rstd * (g - sum(g)/M - (x-mean) rstd^2 sum(g
//             (x-mean))/M)
//
// The variance comes from sums of x - s and (x - s)^2, s being the channel's
// first element: E[x^2] - mean^2 would cancel when |mean| >> std, while x - s
// is of the size of the spread.

#include "ir/builder.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "passes/passes.h"

namespace fusor::passes {
namespace {

using ir::Builder;
using ir::DType;
using ir::Node;
using ir::Value;

constexpr char kPass[] = "lower_batch_norm";

std::vector<int64_t> ReducedDims(const Value* x) {
  return x->type().rank() == 4 ? std::vector<int64_t>{0, 2, 3}
                               : std::vector<int64_t>{0};
}

double ReducedCount(const Value* x) {
  return static_cast<double>(x->type().num_elements() / x->type().shape[1]);
}

// A [C] vector in x's shape and layout.
Value* Spread(Builder& b, Value* vector, const Value* x) {
  return b.BroadcastAlong(vector, x->type(), 1);
}

struct Statistics {
  Value* mean;
  Value* variance;
};

// x in the statistics' dtype.
Statistics Measure(Builder& b, Value* x) {
  ir::Shape limit = x->type().shape;
  for (int64_t dim : ReducedDims(x)) limit[dim] = 1;
  Value* first = b.Slice(x, std::vector<int64_t>(limit.size(), 0), limit);
  Value* s = b.Reshape(first, {x->type().shape[1]});
  Value* d = b.Minus(x, Spread(b, s, x));
  const double count = ReducedCount(x);
  Value* m1 = b.Divide(b.ReduceSum(d, ReducedDims(x)), count);
  Value* m2 = b.Divide(b.ReduceSum(b.Times(d, d), ReducedDims(x)), count);
  Value* variance = b.Minus(m2, b.Times(m1, m1));
  return {b.Plus(s, m1), b.Maximum(variance, b.Zeros(variance->type()))};
}

struct Affine {
  Value* rstd;
  Value* scale;
  Value* shift;
};

Affine MakeAffine(Builder& b, Value* gamma, Value* beta, Value* mean,
                  Value* variance, double epsilon) {
  Value* rstd = b.Rsqrt(b.Plus(variance, epsilon));
  Value* scale = b.Times(gamma, rstd);
  return {rstd, scale, b.Minus(beta, b.Times(mean, scale))};
}

Value* Apply(Builder& b, Value* x, const Affine& a) {
  return b.Plus(b.Times(x, Spread(b, a.scale, x)), Spread(b, a.shift, x));
}

// What is computed in the place of a node, result by result.
using Results = std::vector<Value*>;

Results LowerTrain(Builder& b, const Node& node) {
  const double epsilon = node.attrs().Float("epsilon");
  const std::string& residual = node.attrs().String("residual");
  const DType wide = node.input(1)->type().dtype;
  const DType narrow = node.input(0)->type().dtype;
  Value* x = b.Cast(node.input(0), wide);
  const Statistics s = Measure(b, x);
  Value* z = Apply(
      b, x,
      MakeAffine(b, node.input(1), node.input(2), s.mean, s.variance, epsilon));
  Results results{nullptr, s.mean, s.variance};
  if (residual == "add") {
    z = b.Plus(z, b.Cast(node.input(3), wide));
  } else if (residual == "norm") {
    Value* x2 = b.Cast(node.input(3), wide);
    const Statistics s2 = Measure(b, x2);
    z = b.Plus(z, Apply(b, x2,
                        MakeAffine(b, node.input(4), node.input(5), s2.mean,
                                   s2.variance, epsilon)));
    results.insert(results.end(), {s2.mean, s2.variance});
  }
  if (node.attrs().Bool("relu")) {
    if (residual != "none") results.push_back(b.Compare("gt", z, 0.0));
    z = b.Relu(z);
  }
  results[0] = b.Cast(z, narrow);
  return results;
}

struct Gradients {
  Value* dx;
  Value* dgamma;
  Value* dbeta;
};

Gradients Differentiate(Builder& b, Value* g, Value* sum_g, Value* x,
                        Value* mean, const Affine& a) {
  const double count = ReducedCount(x);
  Value* centered = b.Minus(x, Spread(b, mean, x));
  Value* sum_gx = b.ReduceSum(b.Times(g, centered), ReducedDims(x));
  Value* dgamma = b.Times(sum_gx, a.rstd);
  Value* k1 = a.scale;
  Value* k2 = b.Neg(b.Divide(b.Times(b.Times(k1, a.rstd), dgamma), count));
  Value* k3 = b.Neg(b.Divide(b.Times(k1, sum_g), count));
  Value* dx =
      b.Plus(b.Times(g, Spread(b, k1, x)),
             b.Plus(b.Times(centered, Spread(b, k2, x)), Spread(b, k3, x)));
  return {dx, dgamma, sum_g};
}

Results LowerGrad(Builder& b, const Node& node) {
  const double epsilon = node.attrs().Float("epsilon");
  const std::string& residual = node.attrs().String("residual");
  const bool relu = node.attrs().Bool("relu");
  const DType wide = node.input(2)->type().dtype;
  const DType narrow = node.input(1)->type().dtype;
  Value* g = b.Cast(node.input(0), wide);
  Value* x = b.Cast(node.input(1), wide);
  Value* mean = node.input(4);
  const Affine affine =
      MakeAffine(b, node.input(2), node.input(3), mean, node.input(5), epsilon);
  if (relu) {
    // The mask as forward computed it: by the same operations on the same
    // values, or as it was kept.
    Value* mask = residual == "none" ? b.Compare("gt", Apply(b, x, affine), 0.0)
                                     : node.input(node.num_inputs() - 1);
    g = b.Select(mask, g, b.Zeros(g->type()));
  }
  Value* sum_g = b.ReduceSum(g, ReducedDims(x));
  const Gradients d = Differentiate(b, g, sum_g, x, mean, affine);
  Results results{b.Cast(d.dx, narrow), d.dgamma, d.dbeta};
  if (residual == "add") {
    results.push_back(b.Cast(g, narrow));
  } else if (residual == "norm") {
    Value* x2 = b.Cast(node.input(6), wide);
    Value* mean2 = node.input(9);
    const Affine affine2 = MakeAffine(b, node.input(7), node.input(8), mean2,
                                      node.input(10), epsilon);
    const Gradients d2 = Differentiate(b, g, sum_g, x2, mean2, affine2);
    results.insert(results.end(), {b.Cast(d2.dx, narrow), d2.dgamma, d2.dbeta});
  }
  return results;
}

// Gradients of what fuse_norm_activation has fused.
void CountGradient(const Node& node, PassContext& context) {
  if (!node.attrs().Bool("relu")) return;
  const std::string& residual = node.attrs().String("residual");
  auto& counters = context.counters();
  ++counters[residual == "none" ? "bn_relu_grad" : "bn_add_relu_grad"];
  if (residual == "norm") ++counters["dual_bn_add_relu_grad"];
}

// The new values take over uses and names.
void Replace(ir::Graph& graph, Node* node, const Results& results) {
  std::vector<std::string> names;
  for (size_t i = 0; i < results.size(); ++i) {
    graph.ReplaceAllUses(node->output(i), results[i]);
    names.push_back(node->output(i)->name());
  }
  graph.Erase(node);
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i]->producer() != nullptr) graph.Rename(results[i], names[i]);
  }
}

}  // namespace

bool LowerBatchNorm(ir::Graph& graph, PassContext& context) {
  bool changed = false;
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes()) nodes.push_back(node.get());
  for (Node* node : nodes) {
    const bool train = node->op_name() == "batch_norm_train";
    if (!train && node->op_name() != "batch_norm_grad") continue;
    if (!context.ConsumeFuel(kPass, *node->output())) break;
    if (!train) CountGradient(*node, context);
    Builder builder(graph, node);
    builder.Inherit(node->location());
    const Results results =
        train ? LowerTrain(builder, *node) : LowerGrad(builder, *node);
    Replace(graph, node, results);
    changed = true;
  }
  return changed;
}

}  // namespace fusor::passes
