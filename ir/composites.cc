// Builder's composites: layers and losses built from primitives. Gradients that
// need little more than the result are given: the backward pass then loads less
// than the derivatives of the primitives do.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ir/builder.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

// Returns the first `rank` dimensions without `dims` (increasing).
std::vector<int64_t> Remaining(size_t rank, const std::vector<int64_t>& dims) {
  std::vector<int64_t> remaining;
  for (int64_t i = 0; i < static_cast<int64_t>(rank); ++i) {
    if (!std::binary_search(dims.begin(), dims.end(), i)) {
      remaining.push_back(i);
    }
  }
  return remaining;
}

}  // namespace

Value* Builder::Spread(Value* reduced, const Value* like,
                       const std::vector<int64_t>& dims) {
  return Broadcast(reduced, like->type().shape,
                   Remaining(like->type().rank(), dims));
}

// The maximum is a constant to differentiation, because it cancels.
Value* Builder::Shifted(Value* x, int64_t dim) {
  Value* peak = StopGradient(ReduceMax(x, {dim}));
  return Minus(x, Spread(peak, x, {dim}));
}

Value* Builder::CustomGradient(
    Value* y, const std::vector<Value*>& xs,
    const std::function<std::vector<Value*>(Value* dy)>& gradient, Where at) {
  const Layer layer(*this, at);
  CheckValues("custom_gradient", {y}, at);
  // dy stands for any gradient of y and has its type. Equal nodes are merged,
  // so two stop_gradients keep it apart from one of y in the composite.
  Value* dy = StopGradient(StopGradient(y));
  const std::vector<Value*> gradients = gradient(dy);
  FUSOR_CHECK(gradients.size() == xs.size(), kGraph,
              "custom_gradient{}: expected {} gradients, one per operand, got "
              "{}",
              AtLocation(Here(at)), xs.size(), gradients.size());
  std::vector<Value*> operands{y, dy};
  for (size_t i = 0; i < xs.size(); ++i) {
    if (gradients[i] == nullptr) continue;
    operands.insert(operands.end(), {xs[i], gradients[i]});
  }
  return Add(OpKind::kCustomGradient, std::move(operands))->output();
}

Value* Builder::Linear(Value* x, Value* weight, Value* bias, Where at) {
  const Layer layer(*this, at);
  CheckValues("linear", {x, weight}, at);
  CheckRank("linear weight", weight, 2, at);
  FUSOR_CHECK(x->type().rank() >= 1, kGraph,
              "linear({}, {}){}: expected [.., {}], got a scalar",
              ToString(x->type()), ToString(weight->type()),
              AtLocation(Here(at)), weight->type().shape[1]);
  Shape shape = x->type().shape;
  const int64_t features = shape.back();
  if (shape.size() != 2) {
    x = Reshape(x, {x->type().num_elements() / features, features});
  }
  Value* y = Matmul(x, weight, false, true);
  if (bias != nullptr) y = Plus(y, bias);
  shape.back() = weight->type().shape[0];
  return Reshape(y, std::move(shape));
}

Value* Builder::Clamp(Value* x, double low, double high, Where at) {
  const Layer layer(*this, at);
  FUSOR_CHECK(low <= high, kGraph, "clamp{}: expected low <= high, got {}, {}",
              AtLocation(Here(at)), low, high);
  return Minimum(Maximum(x, low), high);
}

// Minimum passes the gradient to its first operand if both are equal.
Value* Builder::Relu6(Value* x, Where at) {
  const Layer layer(*this, at);
  Value* y = Relu(x);
  return Minimum(ScalarLike(y, 6), y);
}

Value* Builder::Sign(Value* x, Where at) {
  const Layer layer(*this, at);
  CheckValues("sign", {x}, at);
  Value* rest = StopGradient(x);  // 0 or NaN
  if (x->type().dtype != DType::kU8) {
    rest = Select(Compare("lt", x, 0.0), ScalarLike(x, -1), rest);
  }
  return Select(Compare("gt", x, 0.0), ScalarLike(x, 1), rest);
}

// Uses only exp(-|x|) <= 1, which does not overflow. The gradient needs only
// the result: the backward pass reads nothing else.
Value* Builder::Sigmoid(Value* x, Where at) {
  const Layer layer(*this, at);
  CheckValues("sigmoid", {x}, at);
  Value* e = Exp(Minimum(Neg(x), x));
  Value* numerator = Select(Compare("ge", x, 0.0), ScalarLike(x, 1), e);
  Value* y = Divide(numerator, Plus(e, 1.0));
  return CustomGradient(y, {x}, [&](Value* dy) -> std::vector<Value*> {
    return {Times(dy, Times(y, Minus(ScalarLike(y, 1), y)))};
  });
}

Value* Builder::Silu(Value* x, Where at) {
  const Layer layer(*this, at);
  return Times(x, Sigmoid(x));
}

// Computes max(z, 0) + log(1 + e), e = exp(-|z|). log(1 + e) is inaccurate for
// small e. The correction uses log(u) e / (u - 1), u = 1 + e rounded (Kahan).
// It is a constant to differentiation, because its derivative is inaccurate.
Value* Builder::Softplus(Value* x, double beta, Where at) {
  const Layer layer(*this, at);
  CheckValues("softplus", {x}, at);
  FUSOR_CHECK(std::isfinite(beta) && beta != 0, kGraph,
              "softplus{}: beta {}: expected a finite number other than 0",
              AtLocation(Here(at)), beta);
  Value* z = beta == 1 ? x : Times(x, beta);
  Value* e = Exp(Minimum(Neg(z), z));
  Value* u = Plus(e, 1.0);
  Value* log = Log(u);
  Value* accurate =
      Select(Compare("eq", u, 1.0), e, Divide(Times(log, e), Minus(u, 1.0)));
  Value* tail = Plus(log, StopGradient(Minus(accurate, log)));
  Value* y = Plus(Maximum(z, 0.0), tail);
  return beta == 1 ? y : Times(y, 1 / beta);
}

Value* Builder::Gelu(Value* x, Where at) {
  const Layer layer(*this, at);
  Value* phi = Plus(Erf(Times(x, M_SQRT1_2)), 1.0);
  return Times(Times(x, 0.5), phi);
}

// Source: Hendrycks and Gimpel, "Gaussian error linear units", section 2.
Value* Builder::GeluTanh(Value* x, Where at) {
  const Layer layer(*this, at);
  Value* cube = Times(x, Times(x, x));
  Value* inner = Times(Plus(x, Times(cube, 0.044715)), std::sqrt(2 / M_PI));
  return Times(Times(x, 0.5), Plus(Tanh(inner), 1.0));
}

Value* Builder::Softmax(Value* x, int64_t dim, Where at) {
  const Layer layer(*this, at);
  CheckValues("softmax", {x}, at);
  dim = CheckDim("softmax", dim, x->type().rank(), at);
  Value* e = Exp(Shifted(x, dim));
  Value* y = Divide(e, Spread(ReduceSum(e, {dim}), x, {dim}));
  return CustomGradient(y, {x}, [&](Value* dy) -> std::vector<Value*> {
    Value* mean = Spread(ReduceSum(Times(dy, y), {dim}), x, {dim});
    return {Times(y, Minus(dy, mean))};
  });
}

Value* Builder::LogSoftmax(Value* x, int64_t dim, Where at) {
  const Layer layer(*this, at);
  CheckValues("log_softmax", {x}, at);
  dim = CheckDim("log_softmax", dim, x->type().rank(), at);
  Value* z = Shifted(x, dim);
  Value* log_sum = Log(ReduceSum(Exp(z), {dim}));
  Value* y = Minus(z, Spread(log_sum, x, {dim}));
  return CustomGradient(y, {x}, [&](Value* dy) -> std::vector<Value*> {
    return {Minus(dy, Times(Exp(y), Spread(ReduceSum(dy, {dim}), x, {dim})))};
  });
}

Value* Builder::Normalize(Value* x, const std::vector<int64_t>& dims,
                          double epsilon) {
  Value* centered = Minus(x, Spread(ReduceMean(x, dims), x, dims));
  Value* variance = ReduceMean(Times(centered, centered), dims);
  Value* scale = Spread(Rsqrt(Plus(variance, epsilon)), x, dims);
  Value* y = Times(centered, scale);
  return CustomGradient(y, {x}, [&](Value* dy) -> std::vector<Value*> {
    Value* mean = Spread(ReduceMean(dy, dims), x, dims);
    Value* slope = Spread(ReduceMean(Times(dy, y), dims), x, dims);
    return {Times(scale, Minus(Minus(dy, mean), Times(y, slope)))};
  });
}

Value* Builder::LayerNorm(Value* x, Value* gamma, Value* beta, double epsilon,
                          Where at) {
  const Layer layer(*this, at);
  CheckValues("layer_norm", {x, gamma, beta}, at);
  const Shape& shape = x->type().shape;
  const Shape& normalized = gamma->type().shape;
  FUSOR_CHECK(
      !normalized.empty() && normalized.size() <= shape.size() &&
          std::equal(normalized.rbegin(), normalized.rend(), shape.rbegin()) &&
          beta->type().shape == normalized,
      kGraph,
      "layer_norm({}, {}, {}){}: expected gamma and beta of the shape "
      "of the last dims",
      ToString(x->type()), ToString(gamma->type()), ToString(beta->type()),
      AtLocation(Here(at)));
  std::vector<int64_t> dims(normalized.size());
  std::iota(dims.begin(), dims.end(), shape.size() - normalized.size());
  return Plus(Times(Normalize(x, dims, epsilon), gamma), beta);
}

Value* Builder::LayerNorm(Value* x, Value* gamma, Value* beta, double epsilon,
                          int64_t dim, Where at) {
  const Layer layer(*this, at);
  CheckValues("layer_norm", {x, gamma, beta}, at);
  dim = CheckDim("layer_norm", dim, x->type().rank(), at);
  CheckRank("layer_norm gamma", gamma, 1, at);
  CheckRank("layer_norm beta", beta, 1, at);
  const TensorType& type = x->type();
  return Plus(
      Times(Normalize(x, {dim}, epsilon), BroadcastAlong(gamma, type, dim)),
      BroadcastAlong(beta, type, dim));
}

BatchNormResult Builder::BatchNormTrain(Value* x, Value* gamma, Value* beta,
                                        double epsilon, Where at) {
  const Layer layer(*this, at);
  Node* node =
      Add("batch_norm_train", {x, gamma, beta}, {{"epsilon", epsilon}});
  return {node->output(0), node->output(1), node->output(2)};
}

Value* Builder::BatchNormInference(Value* x, Value* gamma, Value* beta,
                                   Value* mean, Value* variance, double epsilon,
                                   Where at) {
  const Layer layer(*this, at);
  CheckValues("batch_norm_inference", {x, gamma, beta, mean, variance}, at);
  Value* scale = Times(gamma, Rsqrt(Plus(variance, epsilon)));
  Value* shift = Minus(beta, Times(mean, scale));
  return Plus(Times(x, BroadcastAlong(scale, x->type(), 1)),
              BroadcastAlong(shift, x->type(), 1));
}

Value* Builder::Dropout(Value* x, double p, Value* key, Value* step, Where at) {
  const Layer layer(*this, at);
  CheckValues("dropout", {x, key, step}, at);
  FUSOR_CHECK(p >= 0 && p < 1, kGraph, "dropout {}{}: expected 0 <= p < 1", p,
              AtLocation(Here(at)));
  if (p == 0) return x;
  Value* keep = Compare("ge", Random(key, step, x->type().shape), p);
  return Select(keep, Times(x, 1 / (1 - p)), Zeros(x->type()));
}

namespace {

// Classes are in dimension 1, as in PyTorch.
std::vector<int64_t> DimsExceptClasses(const Shape& logits) {
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < std::ssize(logits); ++d) dims.push_back(d);
  return dims;
}

Shape WithoutClasses(Shape logits) {
  logits.erase(logits.begin() + 1);
  return logits;
}

}  // namespace

Value* Builder::CrossEntropy(Value* logits, Value* labels,
                             const CrossEntropyOptions& options, Where at) {
  const Layer layer(*this, at);
  CheckValues("cross_entropy", {logits, labels}, at);
  const double smoothing = options.label_smoothing;
  FUSOR_CHECK(smoothing >= 0 && smoothing < 1, kGraph,
              "label smoothing {}{}: expected 0 <= smoothing < 1", smoothing,
              AtLocation(Here(at)));
  const Shape& shape = logits->type().shape;
  FUSOR_CHECK(
      shape.size() >= 2 && labels->type().shape == WithoutClasses(shape) &&
          labels->type().dtype == DType::kI32,
      kGraph, "cross entropy of {} and {}{}: expected [N,C,..] and i32[N,..]",
      ToString(logits->type()), ToString(labels->type()), AtLocation(Here(at)));
  // Uses log_sum - z[label] instead of -log_p[label], so that log_sum has a
  // gradient even if no class is the label.
  Value* z = Shifted(logits, 1);
  Value* log_sum = Log(ReduceSum(Exp(z), {1}));
  Value* hit = Compare("eq", Iota(DType::kI32, shape, 1),
                       Broadcast(labels, shape, DimsExceptClasses(shape)));
  Value* own = ReduceSum(Select(hit, z, Zeros(z->type())), {1});
  if (smoothing > 0) {
    own = Plus(Times(own, 1 - smoothing), Times(ReduceMean(z, {1}), smoothing));
  }
  // 1, or NaN for a label out of range. A factor, so that it reaches the
  // gradient.
  Value* known =
      Add("reduce", {hit},
          {{"kind", std::string("any")}, {"dims", std::vector<int64_t>{1}}})
          ->output();
  Value* factor =
      Select(known, ScalarLike(own, 1),
             ScalarLike(own, std::numeric_limits<double>::quiet_NaN()));
  return Times(Minus(log_sum, own), factor);
}

WeightedLosses Builder::NegativeLogLikelihood(Value* log_p, Value* labels,
                                              Value* class_weights,
                                              std::optional<int64_t> ignored,
                                              Where at) {
  const Layer layer(*this, at);
  CheckValues("negative_log_likelihood", {log_p, labels}, at);
  const Shape& shape = log_p->type().shape;
  const TensorType& labels_type = labels->type();
  FUSOR_CHECK(
      shape.size() >= 2 && labels_type.shape == WithoutClasses(shape) &&
          !IsFloat(labels_type.dtype),
      kGraph,
      "negative log-likelihood of {} and {}{}: expected [N,C,..] and integers "
      "[N,..]",
      ToString(log_p->type()), ToString(labels_type), AtLocation(Here(at)));
  const DType dtype = log_p->type().dtype;
  const Shape classes{shape[1]};
  if (class_weights == nullptr) class_weights = Constant(dtype, classes, {1});
  FUSOR_CHECK(class_weights->type().shape == classes, kGraph,
              "class weights of {}{}: expected [{}], got {}",
              ToString(log_p->type()), AtLocation(Here(at)), shape[1],
              ToString(class_weights->type()));
  Value* label = Cast(labels, DType::kI64);
  Value* counts = nullptr;
  if (ignored) {
    counts = Compare("ne", label, static_cast<double>(*ignored));
    label = Select(counts, label, ScalarLike(label, 0));
  }
  Value* hit = Compare("eq", Iota(DType::kI64, shape, 1),
                       Broadcast(label, shape, DimsExceptClasses(shape)));
  Value* own = ReduceSum(Select(hit, log_p, Zeros(log_p->type())), {1});
  Value* weights = Take(class_weights, label, 0);
  Value* losses = Neg(Times(own, weights));
  if (counts == nullptr) return {losses, weights};
  return {Select(counts, losses, Zeros(losses->type())),
          Select(counts, weights, Zeros(weights->type()))};
}

Value* Builder::TopKCorrect(Value* logits, Value* labels, int64_t k, Where at) {
  const Layer layer(*this, at);
  CheckValues("top_k_correct", {logits, labels}, at);
  const Shape& shape = logits->type().shape;
  FUSOR_CHECK(
      shape.size() >= 2 && labels->type().shape == WithoutClasses(shape),
      kGraph, "top_k_correct of {} and {}{}: expected [N,C,..] and [N,..]",
      ToString(logits->type()), ToString(labels->type()), AtLocation(Here(at)));
  const std::vector<int64_t> others = DimsExceptClasses(shape);
  Value* index = Iota(DType::kI32, shape, 1);
  Value* label = Broadcast(labels, shape, others);
  Value* hit = Compare("eq", index, label);
  Value* own = ReduceSum(Select(hit, logits, Zeros(logits->type())), {1});
  Value* bar = Broadcast(own, shape, others);
  Value* ahead =
      Or(Compare("gt", logits, bar),
         And(Compare("eq", logits, bar), Compare("lt", index, label)));
  Value* rank = ReduceSum(Cast(ahead, DType::kF32), {1});
  // No logit ranks above a NaN label logit, which still counts as not found.
  Value* found =
      And(Compare("lt", rank, static_cast<double>(k)), Compare("eq", own, own));
  return Cast(found, DType::kF32);
}

}  // namespace fusor::ir
