// Losses, as in ATen's Loss.cpp and LossNLL.cpp.

#include <cmath>
#include <numeric>

#include "models/functions.h"
#include "models/import/aten_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

namespace {

using Values = std::vector<Value*>;

// --- Reductions --------------------------------------------------------------

enum class LossReduction { kNone, kMean, kSum };  // ATen's numbers

LossReduction ReductionOf(AtenCall& call) {
  const int64_t number = call.Int("reduction", 1);
  if (number < 0 || number > 2) {
    call.Throw(fmt::format("reduction {}: expected 0, 1 or 2", number));
  }
  return static_cast<LossReduction>(number);
}

// `losses` already have their weights, if any. A mean is weighted by them.
Values Reduced(AtenCall& call, Value* losses, Value* weights = nullptr) {
  Builder& b = call.b();
  const LossReduction reduction = ReductionOf(call);
  std::vector<int64_t> dims(ShapeOf(losses).size());
  std::iota(dims.begin(), dims.end(), 0);
  if (reduction == LossReduction::kNone) return {losses};
  if (reduction == LossReduction::kSum) return {b.ReduceSum(losses, dims)};
  if (weights == nullptr) return {b.ReduceMean(losses, dims)};
  weights = b.Reshape(weights, ShapeOf(losses));
  return {b.Divide(b.ReduceSum(losses, dims), b.ReduceSum(weights, dims))};
}

// Multiplies by the argument "weight".
Value* Weighted(AtenCall& call, Value* losses) {
  Value* weight = call.OptionalTensor("weight");
  return weight == nullptr ? losses : call.b().Times(losses, weight);
}

// --- Losses of values --------------------------------------------------------

struct Compared {
  Value* x;
  Value* target;
};
// Returns both in their common dtype.
Compared ComparedWith(AtenCall& call, Value* x, Value* target) {
  const DType dtype = Promote(x, target);
  return {call.b().Cast(x, dtype), call.b().Cast(target, dtype)};
}
Compared SelfAndTarget(AtenCall& call) {
  return ComparedWith(call, call.Tensor("self"), call.Tensor("target"));
}

Value* ErrorOf(AtenCall& call) {
  const Compared of = SelfAndTarget(call);
  return call.b().Minus(of.x, of.target);
}
Values MseLoss(AtenCall& call) {
  Value* error = ErrorOf(call);
  return Reduced(call, call.b().Times(error, error));
}
Values L1Loss(AtenCall& call) {
  return Reduced(call, call.b().Abs(ErrorOf(call)));
}

// Returns error^2 / 2 up to |error| = delta, and the tangent beyond it. Both
// are m (|error| - m / 2) with m = min(|error|, delta). It may be a constant to
// differentiation, because the derivative by m is 0 where m varies.
Value* Huber(Builder& b, Value* error, double delta) {
  error = b.Abs(error);
  Value* m = b.StopGradient(b.Minimum(error, delta));
  return b.Times(m, b.Minus(error, b.Times(m, 0.5)));
}
Values HuberLoss(AtenCall& call) {
  const double delta = call.Number("delta", 1);
  if (!(delta > 0)) {
    call.Throw(fmt::format("delta {}: expected a positive number", delta));
  }
  return Reduced(call, Huber(call.b(), ErrorOf(call), delta));
}
Values SmoothL1Loss(AtenCall& call) {
  const double beta = call.Number("beta", 1);
  if (beta == 0) return L1Loss(call);
  if (!(beta > 0)) {
    call.Throw(fmt::format("beta {}: expected 0 or a positive number", beta));
  }
  Builder& b = call.b();
  return Reduced(call, b.Divide(Huber(b, ErrorOf(call), beta), beta));
}

// --- Losses of probabilities and rates ---------------------------------------

// Logarithms are limited to -100. The gradient by x is that of the exact loss,
// limited near 0 and 1.
Values BinaryCrossEntropy(AtenCall& call) {
  constexpr double kLeastLog = -100;
  constexpr double kLeastVariance = 1e-12;
  Builder& b = call.b();
  const Compared of = SelfAndTarget(call);
  Value* x = of.x;
  Value* target = of.target;
  Value* one = b.ScalarLike(x, 1);
  Value* other = b.Minus(one, x);
  Value* log = b.Log(x);
  Value* log_other = b.Log(other);
  Value* losses = b.Neg(
      b.Plus(b.Times(target, b.Maximum(log, kLeastLog)),
             b.Times(b.Minus(one, target), b.Maximum(log_other, kLeastLog))));
  losses = b.CustomGradient(losses, {x, target}, [&](Value* dy) -> Values {
    Value* variance = b.Maximum(b.Times(x, other), kLeastVariance);
    return {b.Times(dy, b.Divide(b.Minus(x, target), variance)),
            b.Times(dy, b.Minus(log_other, log))};
  });
  return Reduced(call, Weighted(call, losses));
}

Values BinaryCrossEntropyWithLogits(AtenCall& call) {
  Builder& b = call.b();
  const auto [x, target] = SelfAndTarget(call);
  Value* one = b.ScalarLike(x, 1);
  Value* log = b.Softplus(b.Neg(x));  // -log sigmoid(x)
  if (Value* positive = call.OptionalTensor("pos_weight");
      positive != nullptr) {
    Value* extra = b.Times(b.Minus(positive, 1.0), target);
    log = b.Times(log, b.Plus(extra, 1.0));
  }
  Value* losses = b.Plus(b.Times(b.Minus(one, target), x), log);
  return Reduced(call, Weighted(call, losses));
}

Values KlDivergence(AtenCall& call) {
  Builder& b = call.b();
  const auto [x, target] = SelfAndTarget(call);
  if (call.Bool("log_target", false)) {
    return Reduced(call, b.Times(b.Exp(target), b.Minus(target, x)));
  }
  // target log(target) is 0 at 0.
  Value* none = b.Compare("eq", target, 0.0);
  Value* log = b.Log(b.Select(none, b.ScalarLike(target, 1), target));
  return Reduced(call, b.Minus(b.Times(target, log), b.Times(target, x)));
}

Values PoissonNllLoss(AtenCall& call) {
  Builder& b = call.b();
  const auto [x, target] =
      ComparedWith(call, AsFloat(call, call.Tensor("input")),
                   AsFloat(call, call.Tensor("target")));
  const double epsilon = call.Number("eps");
  Value* losses = call.Bool("log_input", true)
                      ? b.Minus(b.Exp(x), b.Times(target, x))
                      : b.Minus(x, b.Times(target, b.Log(b.Plus(x, epsilon))));
  if (call.Bool("full", false)) {
    // Stirling's approximation of log(target!), for targets above 1.
    Value* counts = b.Compare("gt", target, 1.0);
    Value* t = b.Select(counts, target, b.ScalarLike(target, 1));
    Value* stirling = b.Plus(b.Minus(b.Times(t, b.Log(t)), t),
                             b.Times(b.Log(b.Times(t, 2 * M_PI)), 0.5));
    losses =
        b.Plus(losses, b.Select(counts, stirling, b.Zeros(stirling->type())));
  }
  return Reduced(call, losses);
}

// --- Losses of margins -------------------------------------------------------

Values HingeEmbeddingLoss(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  Value* target = call.Tensor("target");  // 1 or -1
  Value* margin = b.ScalarLike(x, call.Number("margin", 1));
  Value* far = b.Relu(b.Minus(margin, x));
  Value* zero = b.ScalarLike(x, 0);
  return Reduced(call,
                 b.Plus(b.Select(b.Compare("ne", target, 1.0), far, zero),
                        b.Select(b.Compare("ne", target, -1.0), x, zero)));
}

Values MarginRankingLoss(AtenCall& call) {
  Builder& b = call.b();
  const auto [difference, target] =
      ComparedWith(call, b.Minus(call.Tensor("input1"), call.Tensor("input2")),
                   call.Tensor("target"));
  Value* hinge =
      b.Plus(b.Times(b.Neg(target), difference), call.Number("margin", 0));
  return Reduced(call, b.Relu(hinge));
}

Values SoftMarginLoss(AtenCall& call) {
  Builder& b = call.b();
  const auto [x, target] = SelfAndTarget(call);
  return Reduced(call, b.Softplus(b.Neg(b.Times(target, x))));
}

// Inputs [N,D] and targets [N], or [D] and a scalar.
Values CosineEmbeddingLoss(AtenCall& call) {
  constexpr double kEpsilon = 1e-12;
  Builder& b = call.b();
  Value* x1 = call.Tensor("input1");
  Value* x2 = call.Tensor("input2");
  Value* target = call.Tensor("target");  // 1 or -1
  const int64_t dim = RankOf(target);
  if (dim > 1 || RankOf(x1) != dim + 1 || RankOf(x2) != dim + 1) {
    call.Throw(fmt::format(
        "expected inputs [N,D] and a target [N], or [D] and a scalar, got {}, "
        "{} and {}",
        ToString(x1->type()), ToString(x2->type()), ToString(target->type())));
  }
  const auto product = [&](Value* a, Value* c) {
    return b.ReduceSum(b.Times(a, c), {dim});
  };
  Value* squares = b.Times(b.Plus(product(x1, x1), kEpsilon),
                           b.Plus(product(x2, x2), kEpsilon));
  Value* cosine = b.Divide(product(x1, x2), b.Sqrt(squares));
  Value* zero = b.ScalarLike(cosine, 0);
  Value* near = b.Minus(b.ScalarLike(cosine, 1), cosine);
  Value* far = b.Relu(b.Minus(cosine, call.Number("margin", 0)));
  return Reduced(call,
                 b.Plus(b.Select(b.Compare("eq", target, 1.0), near, zero),
                        b.Select(b.Compare("eq", target, -1.0), far, zero)));
}

Values TripletMarginLoss(AtenCall& call) {
  Builder& b = call.b();
  Value* anchor = call.Tensor("anchor");
  Value* positive = call.Tensor("positive");
  Value* negative = call.Tensor("negative");
  const double p = call.Number("p", 2);
  if (!(p > 0)) call.Throw(fmt::format("p {}: expected a positive number", p));
  const double epsilon = call.Number("eps", 1e-6);
  const auto distance = [&](Value* from, Value* to) {
    Value* difference = b.Plus(b.Minus(from, to), epsilon);
    return NormOf(b, difference, p, {RankOf(difference) - 1}, /*keep=*/false);
  };
  Value* near = distance(anchor, positive);
  Value* far = distance(anchor, negative);
  if (call.Bool("swap", false)) {
    far = b.Minimum(far, distance(positive, negative));
  }
  Value* hinge = b.Plus(b.Minus(near, far), call.Number("margin", 1));
  return Reduced(call, b.Relu(hinge));
}

// Returns [C] as [1,C], a scalar as [1,1], and [N,C] itself.
Value* Matrix(AtenCall& call, Value* x) {
  if (RankOf(x) > 2) {
    call.Throw("expected [N,C], [C] or a scalar, got " + ToString(x->type()));
  }
  const int64_t count = x->type().num_elements();
  return RankOf(x) == 2 ? x : call.b().Reshape(x, {1, count});
}

// Compares the class of each sample with the others.
Values MultiMarginLoss(AtenCall& call) {
  Builder& b = call.b();
  Value* x = Matrix(call, call.Tensor("self"));
  Value* target = call.Tensor("target");
  const int64_t samples = ShapeOf(x)[0];
  if (ir::IsFloat(target->type().dtype) || RankOf(target) > 1 ||
      target->type().num_elements() != samples) {
    call.Throw(fmt::format("target: expected {} classes, got {}", samples,
                           ToString(target->type())));
  }
  const double p = call.Number("p", 1);
  if (p != 1 && p != 2) call.Throw(fmt::format("p {}: expected 1 or 2", p));
  Value* index = b.Reshape(b.Cast(target, DType::kI64), {samples, 1});
  Value* excess = b.Minus(x, b.TakeAlong(x, index, 1));
  Value* losses = b.Relu(b.Plus(excess, call.Number("margin", 1)));
  if (p == 2) losses = b.Times(losses, losses);
  Value* weight = call.OptionalTensor("weight");
  if (weight != nullptr) losses = b.Times(losses, b.Take(weight, index, 0));
  Value* others = b.Compare("ne", b.Iota(DType::kI64, ShapeOf(x), 1), index);
  losses = b.Select(others, losses, b.ScalarLike(losses, 0));
  return Reduced(call, b.Reshape(b.ReduceMean(losses, {1}), ShapeOf(target)));
}

// Compares each class of a sample with each class that is not one of them. The
// classes of a sample come first in its row of targets; -1 ends them.
Values MultilabelMarginLoss(AtenCall& call) {
  Builder& b = call.b();
  Value* self = call.Tensor("self");
  Value* x = Matrix(call, self);
  Value* target = call.Tensor("target");
  if (ir::IsFloat(target->type().dtype) || ShapeOf(target) != ShapeOf(self)) {
    call.Throw(
        fmt::format("target: expected classes in the shape of {}, got {}",
                    ToString(self->type()), ToString(target->type())));
  }
  const int64_t samples = ShapeOf(x)[0];
  const int64_t classes = ShapeOf(x)[1];
  const Shape row{samples, 1, classes};
  const Shape column{samples, classes, 1};
  target = b.Cast(Matrix(call, target), DType::kI64);
  Value* ends = b.Cast(b.Compare("lt", target, 0.0), DType::kI64);
  Value* given = b.Compare("eq", b.CumulativeSum(ends, 1), 0.0);
  Value* index = b.Select(given, target, b.ScalarLike(target, 0));
  // [samples, label, class]
  given = b.Reshape(given, column);
  Value* hit =
      b.Compare("eq", b.Iota(DType::kI64, row, 2), b.Reshape(index, column));
  Value* hits = b.Cast(b.And(hit, given), x->type().dtype);
  Value* others =
      b.Compare("eq", b.ReduceSum(hits, {1}, /*keepdim=*/true), 0.0);
  Value* own = b.Reshape(b.TakeAlong(x, index, 1), column);
  Value* losses = b.Relu(b.Plus(b.Minus(b.Reshape(x, row), own), 1.0));
  losses = b.Select(b.And(given, others), losses, b.ScalarLike(losses, 0));
  losses = b.Divide(b.ReduceSum(losses, {1, 2}), static_cast<double>(classes));
  return Reduced(call, RankOf(self) < 2 ? b.Reshape(losses, {}) : losses);
}

// --- Losses of classes -------------------------------------------------------

// Values [N,C,..] and targets: labels [N,..] or probabilities [N,C,..].
struct Classes {
  Value* x;
  Value* target;
  Shape losses;  // [N,..]; [] for values [C], which become [1,C]
};
Classes ClassesOf(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  Value* target = call.Tensor("target");
  if (RankOf(x) == 0) call.Throw("expected [N,C,..] or [C], got a scalar");
  Shape losses = ShapeOf(x);
  if (losses.size() > 1) {
    losses.erase(losses.begin() + 1);
    return {x, target, losses};
  }
  Shape shape = ShapeOf(target);
  shape.insert(shape.begin(), 1);
  return {b.Reshape(x, {1, losses[0]}), b.Reshape(target, shape), {}};
}

ir::WeightedLosses LossesOfLabels(AtenCall& call, Value* log_p, Value* labels) {
  if (ir::IsFloat(labels->type().dtype)) {
    call.Throw("target: expected classes, got " + ToString(labels->type()));
  }
  return call.b().NegativeLogLikelihood(log_p, labels,
                                        call.OptionalTensor("weight"),
                                        call.Int("ignore_index", -100));
}

Values NllLoss(AtenCall& call) {
  const auto [x, target, shape] = ClassesOf(call);
  const ir::WeightedLosses of = LossesOfLabels(call, x, target);
  return Reduced(call, call.b().Reshape(of.losses, shape), of.weights);
}

// Returns -(log_p weight) summed over the classes.
Value* NegatedSum(AtenCall& call, Value* log_p) {
  Builder& b = call.b();
  Value* weight = call.OptionalTensor("weight");
  if (weight != nullptr) {
    log_p = b.Times(log_p, b.BroadcastAlong(weight, log_p->type(), 1));
  }
  return b.Neg(b.ReduceSum(log_p, {1}));
}

Values CrossEntropyLoss(AtenCall& call) {
  Builder& b = call.b();
  const auto [x, target, shape] = ClassesOf(call);
  Value* log_p = b.LogSoftmax(x, 1);
  const double smoothing = call.Number("label_smoothing", 0);
  if (!(smoothing >= 0 && smoothing <= 1)) {
    call.Throw(fmt::format("label_smoothing {}: expected a number from 0 to 1",
                           smoothing));
  }
  const double share = smoothing / static_cast<double>(ShapeOf(x)[1]);
  if (ShapeOf(target) == ShapeOf(x)) {
    call.Int("ignore_index", -100);  // of labels only
    if (!ir::IsFloat(target->type().dtype)) {
      call.Throw("target: expected probabilities, got " +
                 ToString(target->type()));
    }
    Compared of = ComparedWith(call, log_p, target);
    if (smoothing > 0) {
      of.target = b.Plus(b.Times(of.target, 1 - smoothing), share);
    }
    Value* losses = NegatedSum(call, b.Times(of.x, of.target));
    return Reduced(call, b.Reshape(losses, shape));
  }
  auto [losses, weights] = LossesOfLabels(call, log_p, target);
  if (smoothing > 0) {
    const auto ignored = static_cast<double>(call.Int("ignore_index", -100));
    Value* counts = b.Compare("ne", b.Cast(target, DType::kI64), ignored);
    Value* uniform = NegatedSum(call, log_p);
    uniform = b.Select(counts, uniform, b.ScalarLike(uniform, 0));
    losses = b.Plus(b.Times(losses, 1 - smoothing), b.Times(uniform, share));
  }
  return Reduced(call, b.Reshape(losses, shape), weights);
}

constexpr AtenOp kLossOps[] = {
    {"binary_cross_entropy.default", BinaryCrossEntropy},
    {"binary_cross_entropy_with_logits.default", BinaryCrossEntropyWithLogits},
    {"cosine_embedding_loss.default", CosineEmbeddingLoss},
    {"cross_entropy_loss.default", CrossEntropyLoss},
    {"hinge_embedding_loss.default", HingeEmbeddingLoss},
    {"huber_loss.default", HuberLoss},
    {"kl_div.default", KlDivergence},
    {"l1_loss.default", L1Loss},
    {"margin_ranking_loss.default", MarginRankingLoss},
    {"mse_loss.default", MseLoss},
    {"multi_margin_loss.default", MultiMarginLoss},
    {"multilabel_margin_loss.default", MultilabelMarginLoss},
    {"nll_loss.default", NllLoss},
    {"nll_loss2d.default", NllLoss},
    {"nll_loss_nd.default", NllLoss},
    {"poisson_nll_loss.default", PoissonNllLoss},
    {"smooth_l1_loss.default", SmoothL1Loss},
    {"soft_margin_loss.default", SoftMarginLoss},
    {"triplet_margin_loss.default", TripletMarginLoss},
};

}  // namespace

std::span<const AtenOp> AtenLossOps() { return kLossOps; }

}  // namespace fusor::models
