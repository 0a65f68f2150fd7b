// Batch normalisation as reductions and elementwise ops.
//
// With scale = gamma * rstd and shift = beta - mean * scale per channel:
//
//   forward   y  = relu?(x * scale + shift [+ r | + x2 * scale2 + shift2])
//   backward  g  = dy where y > 0
//             dx = gamma * rstd * (g - sum(g)/M
//                                  - (x-mean) rstd^2 sum(g (x-mean))/M)
//
// The variance is computed from sums of x - s and (x - s)^2, where s is the
// channel's first element. E[x^2] - mean^2 would cancel if |mean| >> std, but
// x - s has the magnitude of std. Convolutions that sum up their own results
// (fuse_conv_norm) provide only E[x] and E[x^2], in f32. The variance then has
// a relative error of about 2^-24 (1 + mean^2 / variance), plus that of the
// summation.
//
// With eager rounding the operands of the residual add and of the ReLU are
// rounded to y's dtype, as they are if add and ReLU are separate nodes.
//
// Over several ranks (synchronised batch normalisation) each node needs one
// collective: forward for the statistics of each rank's batch, backward for the
// two sums, if dx is used. dgamma and dbeta remain this rank's contribution,
// which is all-reduced with all other gradients.

#include "ir/builder.h"
#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "passes/collectives/cross_rank_reduce.h"
#include "passes/fusion/outline.h"
#include "passes/passes.h"
#include "passes/simplify/dead_code.h"

namespace fusor::passes {
namespace {

using ir::Builder;
using ir::DType;
using ir::Node;
using ir::OpKind;
using ir::Value;

constexpr char kLowerBatchNormPass[] = "lower_batch_norm";

std::vector<int64_t> ReducedDims(const Value* x) {
  return x->type().rank() == 4 ? std::vector<int64_t>{0, 2, 3}
                               : std::vector<int64_t>{0};
}

double ReducedCount(const Value* x) {
  return static_cast<double>(x->type().num_elements() / x->type().shape[1]);
}

// Broadcasts a [C] vector to x's shape and layout.
Value* Spread(Builder& b, Value* vector, const Value* x) {
  return b.BroadcastAlong(vector, x->type(), 1);
}

using Statistics = ChannelStatistics;

// Computes the statistics from the sums that a library call returns with `x`.
Statistics FromSums(Builder& b, const ir::ChannelSums& sums, const Value* x) {
  const double count = ReducedCount(x);
  Value* mean = b.Divide(sums.sum, count);
  Value* squares = b.Divide(sums.squares, count);
  Value* variance = b.Minus(squares, b.Times(mean, mean));
  return {mean, b.Maximum(variance, b.Zeros(variance->type()))};
}

// Computes the statistics of `x`: the node's operand `source`, cast to the
// dtype of the statistics.
Statistics Measure(Builder& b, Value* x, const Value* source) {
  if (const auto sums = ir::ChannelSumsOf(*source)) {
    return FromSums(b, *sums, x);
  }
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

// Rounds x to `narrow` if rounding is eager, otherwise returns x.
Value* Rounded(Builder& b, Value* x, DType narrow, bool eager) {
  return eager ? b.Cast(b.Cast(x, narrow), x->type().dtype) : x;
}

// The values that replace a node's results.
using Results = std::vector<Value*>;

Results LowerTrain(Builder& b, const Node& node, bool eager) {
  const double epsilon = node.attrs().Float("epsilon");
  const std::string& residual = node.attrs().String("residual");
  const DType wide = node.input(1)->type().dtype;
  const DType narrow = node.input(0)->type().dtype;
  Value* x = b.Cast(node.input(0), wide);
  std::vector<Statistics> statistics{Measure(b, x, node.input(0))};
  Value* x2 = nullptr;
  if (residual == "norm") {
    x2 = b.Cast(node.input(3), wide);
    statistics.push_back(Measure(b, x2, node.input(3)));
  }
  statistics = MergeOverRanks(b, statistics, node.attrs().Int("ranks"));
  const Statistics& s = statistics[0];
  const auto round = [&](Value* value) {
    return Rounded(b, value, narrow, eager);
  };
  Value* z = round(Apply(b, x,
                         MakeAffine(b, node.input(1), node.input(2), s.mean,
                                    s.variance, epsilon)));
  Results results{nullptr, s.mean, s.variance};
  if (residual == "add") {
    z = round(b.Plus(z, b.Cast(node.input(3), wide)));
  } else if (residual == "norm") {
    const Statistics& s2 = statistics[1];
    Value* z2 = Apply(b, x2,
                      MakeAffine(b, node.input(4), node.input(5), s2.mean,
                                 s2.variance, epsilon));
    z = round(b.Plus(z, round(z2)));
    results.insert(results.end(), {s2.mean, s2.variance});
  }
  if (node.attrs().Bool("relu")) {
    if (residual != "none") results.push_back(b.Compare("gt", z, 0.0));
    z = b.Relu(z);
  }
  results[0] = b.Cast(z, narrow);
  return results;
}

// The upstream gradient of a node: g is dy where y > 0, otherwise 0.
struct Arriving {
  Value* dy;
  Value* mask;  // null without ReLU
  Value* g;
};

// Backward values of one of a node's normalisations.
struct Branch {
  Value* x;
  Value* mean;
  Affine affine;
  Value* centered;  // x - mean
  Value* sum_gx;    // sum of g * centered over this rank's batch
  Value* dgamma;
};

Branch MakeBranch(Builder& b, const Arriving& in, Value* x, Value* mean,
                  const Affine& affine) {
  Value* centered = b.Minus(x, Spread(b, mean, x));
  Value* sum_gx = b.ReduceSum(b.Times(in.g, centered), ReducedDims(x));
  return {x, mean, affine, centered, sum_gx, b.Times(sum_gx, affine.rstd)};
}

// dx = g k1 + centered k2 + k3.
struct Slopes {
  Value* k1;
  Value* minus_k2;
  Value* k3;
};

Slopes MakeSlopes(Builder& b, const Affine& a, Value* sum_g, Value* dgamma,
                  double count) {
  Value* k1 = a.scale;
  Value* minus_k2 = b.Divide(b.Times(b.Times(k1, a.rstd), dgamma), count);
  return {k1, minus_k2, b.Neg(b.Divide(b.Times(k1, sum_g), count))};
}

Value* InputGradient(Builder& b, const Arriving& in, const Branch& branch,
                     Value* sum_g) {
  Value* x = branch.x;
  const Slopes s =
      MakeSlopes(b, branch.affine, sum_g, branch.dgamma, ReducedCount(x));
  Value* k2 = b.Neg(s.minus_k2);
  return b.Plus(
      b.Times(in.g, Spread(b, s.k1, x)),
      b.Plus(b.Times(branch.centered, Spread(b, k2, x)), Spread(b, s.k3, x)));
}

// After a collective, a separate kernel computes dx. It reads the operands of
// the sums again. It masks and centers them with different ops that give
// bit-identical values: shared ops would store tensors as large as x.
Value* InputGradientApart(Builder& b, const Arriving& in, const Branch& branch,
                          Value* sum_g, Value* sum_gx, int64_t ranks) {
  Value* x = branch.x;
  const Affine& a = branch.affine;
  const Slopes s = MakeSlopes(b, a, sum_g, b.Times(sum_gx, a.rstd),
                              static_cast<double>(ranks) * ReducedCount(x));
  Value* scaled = b.Times(in.dy, Spread(b, s.k1, x));
  if (in.mask != nullptr) {
    scaled = b.Select(in.mask, scaled, b.Zeros(scaled->type()));
  }
  Value* reversed = b.Minus(Spread(b, branch.mean, x), x);
  return b.Plus(scaled, b.Plus(b.Times(reversed, Spread(b, s.minus_k2, x)),
                               Spread(b, s.k3, x)));
}

// Returns the input gradients of all branches.
std::vector<Value*> InputGradients(Builder& b, const Node& node,
                                   const Arriving& in, Value* sum_g,
                                   const std::vector<Branch>& branches) {
  const int64_t ranks = node.attrs().Int("ranks");
  const auto wanted = [&](size_t result) {
    return !b.graph().IsUnused(node.output(result));
  };
  std::vector<Value*> gradients;
  // Unused gradients, e.g. of images, need no collective.
  if (ranks == 1 || (!wanted(0) && (branches.size() == 1 || !wanted(3)))) {
    for (const Branch& branch : branches) {
      gradients.push_back(InputGradient(b, in, branch, sum_g));
    }
    return gradients;
  }
  std::vector<Value*> sums{sum_g};
  for (const Branch& branch : branches) sums.push_back(branch.sum_gx);
  sums = SumOverRanks(b, sums, ranks);
  for (size_t i = 0; i < branches.size(); ++i) {
    gradients.push_back(
        InputGradientApart(b, in, branches[i], sums[0], sums[i + 1], ranks));
  }
  return gradients;
}

Arriving MakeArriving(Builder& b, const Node& node, Value* x,
                      const Affine& affine, bool eager) {
  Value* dy = b.Cast(node.input(0), x->type().dtype);
  if (!node.attrs().Bool("relu")) return {dy, nullptr, dy};
  // The forward mask: stored, or recomputed by the same operations on the same
  // values.
  Value* mask = node.input(node.num_inputs() - 1);
  if (node.attrs().String("residual") == "none") {
    const DType narrow = node.input(1)->type().dtype;
    mask = b.Compare("gt", Rounded(b, Apply(b, x, affine), narrow, eager), 0.0);
  }
  return {dy, mask, b.Select(mask, dy, b.Zeros(dy->type()))};
}

// Returns g in `dtype`. Selects in dy's dtype: the value is the same, and no
// wider tensor is stored.
Value* Narrowed(Builder& b, const Arriving& in, Value* dy, DType dtype) {
  Value* g =
      in.mask == nullptr ? dy : b.Select(in.mask, dy, b.Zeros(dy->type()));
  return b.Cast(g, dtype);
}

Results LowerGrad(Builder& b, const Node& node, bool eager) {
  const double epsilon = node.attrs().Float("epsilon");
  const std::string& residual = node.attrs().String("residual");
  const DType wide = node.input(2)->type().dtype;
  const DType narrow = node.input(1)->type().dtype;
  Value* x = b.Cast(node.input(1), wide);
  Value* mean = node.input(4);
  const Affine affine =
      MakeAffine(b, node.input(2), node.input(3), mean, node.input(5), epsilon);
  const Arriving in = MakeArriving(b, node, x, affine, eager);
  Value* sum_g = b.ReduceSum(in.g, ReducedDims(x));
  std::vector<Branch> branches{MakeBranch(b, in, x, mean, affine)};
  if (residual == "norm") {
    Value* x2 = b.Cast(node.input(6), wide);
    Value* mean2 = node.input(9);
    const Affine affine2 = MakeAffine(b, node.input(7), node.input(8), mean2,
                                      node.input(10), epsilon);
    branches.push_back(MakeBranch(b, in, x2, mean2, affine2));
  }
  const std::vector<Value*> dx = InputGradients(b, node, in, sum_g, branches);
  Results results{b.Cast(dx[0], narrow), branches[0].dgamma, sum_g};
  if (residual == "add") {
    results.push_back(Narrowed(b, in, node.input(0), narrow));
  } else if (residual == "norm") {
    results.insert(results.end(),
                   {b.Cast(dx[1], narrow), branches[1].dgamma, sum_g});
  }
  return results;
}

// Counts gradients of nodes that fuse_norm_activation has fused.
void CountGradient(const Node& node, PassContext& context) {
  if (!node.attrs().Bool("relu")) return;
  const std::string& residual = node.attrs().String("residual");
  auto& counters = context.counters();
  ++counters[residual == "none" ? "bn_relu_grad" : "bn_add_relu_grad"];
  if (residual == "norm") ++counters["dual_bn_add_relu_grad"];
}

void CheckRanks(const Node& node, const PassContext& context) {
  const int64_t ranks = node.attrs().Int("ranks");
  const int world = context.options().world_size;
  FUSOR_CHECK(ranks == 1 || ranks == world, kGraph,
              "{}{}: statistics over {} ranks, expected those of {}",
              node.op_name(), ir::AtLocation(node.location()), ranks, world);
}

// Replaces the node; the new values take over its uses and names.
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

void Expand(ir::Graph& graph, Node* node, bool eager) {
  Builder builder(graph, node);
  builder.Inherit(node->location());
  Replace(graph, node,
          node->kind() == OpKind::kBatchNormTrain
              ? LowerTrain(builder, *node, eager)
              : LowerGrad(builder, *node, eager));
}

// A kernel cannot contain a collective.
bool IsSeparate(const Node& node, const PassOptions& options) {
  return options.norm_lowering == NormLowering::kSeparate &&
         node.attrs().Int("ranks") == 1;
}

// Requests an unfused kernel: a fusion with the node's computation.
OutlineRequest InKernel(Node* node, PassContext& context) {
  const bool eager = context.options().eager_rounding;
  return {.members = {node},
          .location = node->location(),
          .eager_rounding = eager,
          .rewrite = [&context, eager](ir::Graph& body) {
            Expand(body, body.nodes()[0].get(), eager);
            Simplify(body, context);
            EraseDeadNodes(body);
            DuplicateFreeNodes(body);
          }};
}

}  // namespace

bool LowerBatchNorm(ir::Graph& graph, PassContext& context) {
  bool changed = false;
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes()) nodes.push_back(node.get());
  std::vector<OutlineRequest> kernels;
  for (Node* node : nodes) {
    const bool train = node->kind() == OpKind::kBatchNormTrain;
    if (!train && node->kind() != OpKind::kBatchNormGrad) continue;
    if (!context.ConsumeFuel(kLowerBatchNormPass, *node->output())) break;
    CheckRanks(*node, context);
    if (!train) CountGradient(*node, context);
    if (IsSeparate(*node, context.options())) {
      kernels.push_back(InKernel(node, context));
    } else {
      Expand(graph, node, context.options().eager_rounding);
    }
    changed = true;
  }
  Outline(graph, kernels);
  return changed;
}

}  // namespace fusor::passes
