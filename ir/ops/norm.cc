#include <cmath>

#include "ir/builder.h"
#include "ir/interpreter/strided_loops.h"
#include "ir/ops/families.h"
#include "ir/support/error.h"

// Batch normalisation over dimensions 0, 2, 3 of [N,C,H,W] (or 0 of [N,C]),
// lowered late (passes/patterns/lower_batch_norm.cc). The attribute `residual`
// selects what is added before the ReLU:
//
//   "none"  y = relu?(bn(x))
//   "add"   y = relu?(bn(x) + r)            operand r [N,C,H,W]
//   "norm"  y = relu?(bn(x) + bn(x2))       operands x2, gamma2, beta2
//
// With relu and a residual, result `mask` is y > 0, so that the backward pass
// need not read r. Without a residual the backward pass recomputes y from x.
//
// With ranks = W, the statistics and the sums for dx cover the batches of W
// ranks; dgamma and dbeta are this rank's share. The interpreter simulates one
// rank and assumes that all ranks have the same batch.

namespace fusor::ir {
namespace {

using Types = std::span<const TensorType>;
using Grads = std::vector<Value*>;
using DOutputs = std::span<Value* const>;

enum class Residual { kNone, kAdd, kNorm };

Residual ResidualOf(const Attrs& attrs) {
  const std::string& text = attrs.String("residual");
  if (text == "none") return Residual::kNone;
  if (text == "add") return Residual::kAdd;
  FUSOR_CHECK(text == "norm", kGraph, "residual {}: expected none, add or norm",
              text);
  return Residual::kNorm;
}

void CheckVectors(Types vectors, const TensorType& x) {
  for (const TensorType& v : vectors) {
    FUSOR_CHECK(v.shape == Shape{x.shape[1]} && IsFloat(v.dtype), kGraph,
                "expected vectors of {} channels", x.shape[1]);
  }
}

void CheckInput(const TensorType& x) {
  FUSOR_CHECK((x.rank() == 4 || x.rank() == 2) && IsFloat(x.dtype), kGraph,
              "expected a float [N,C,H,W] or [N,C]");
}

bool HasMask(const Attrs& attrs) {
  return attrs.Bool("relu") && ResidualOf(attrs) != Residual::kNone;
}

// x, gamma, beta, [r | x2, gamma2, beta2]
//   -> y, mean, variance, [mean2, variance2], [mask]
std::vector<TensorType> InferTrain(Types in, const Attrs& attrs) {
  const Residual residual = ResidualOf(attrs);
  FUSOR_CHECK(attrs.Int("ranks") > 0, kGraph,
              "ranks {}: expected a positive number", attrs.Int("ranks"));
  constexpr size_t kCounts[] = {3, 4, 6};
  FUSOR_CHECK(in.size() == kCounts[static_cast<int>(residual)], kGraph,
              "residual {}: expected {} operands, got {}",
              attrs.String("residual"), kCounts[static_cast<int>(residual)],
              in.size());
  const TensorType& x = in[0];
  CheckInput(x);
  CheckVectors(in.subspan(1, 2), x);
  const TensorType statistic{in[1].dtype, {x.shape[1]}, {}};
  std::vector<TensorType> out{x, statistic, statistic};
  if (residual != Residual::kNone) {
    FUSOR_CHECK(in[3].shape == x.shape && in[3].dtype == x.dtype, kGraph,
                "expected the residual operand to have x's type");
  }
  if (residual == Residual::kNorm) {
    CheckVectors(in.subspan(4, 2), x);
    out.insert(out.end(), 2, statistic);
  }
  if (HasMask(attrs)) {
    out.push_back({DType::kBool, x.shape, x.layout});
  }
  return out;
}

// dy, x, gamma, beta, mean, variance, [x2, gamma2, beta2, mean2, variance2],
// [mask] -> dx, dgamma, dbeta, [dr | dx2, dgamma2, dbeta2]
std::vector<TensorType> InferGrad(Types in, const Attrs& attrs) {
  const Residual residual = ResidualOf(attrs);
  const size_t expected =
      6 + (residual == Residual::kNorm ? 5 : 0) + (HasMask(attrs) ? 1 : 0);
  FUSOR_CHECK(in.size() == expected, kGraph,
              "residual {}: expected {} operands, got {}",
              attrs.String("residual"), expected, in.size());
  const TensorType& x = in[1];
  CheckInput(x);
  FUSOR_CHECK(in[0].shape == x.shape, kGraph, "expected dy of x's shape");
  CheckVectors(in.subspan(2, 4), x);
  std::vector<TensorType> out{x, in[2], in[3]};
  if (residual == Residual::kAdd) out.push_back(x);
  if (residual == Residual::kNorm) {
    CheckVectors(in.subspan(7, 4), x);
    out.insert(out.end(), {in[6], in[7], in[8]});
  }
  return out;
}

Grads GradTrain(Builder& b, const Node& n, DOutputs d) {
  const Residual residual = ResidualOf(n.attrs());
  for (size_t i = 1; i < d.size(); ++i) {
    FUSOR_CHECK(d[i] == nullptr, kGraph,
                "batch_norm_train{}: its statistics have no gradient; use "
                "stop_gradient",
                AtLocation(n.location()));
  }
  std::vector<Value*> operands{d[0],       n.input(0),  n.input(1),
                               n.input(2), n.output(1), n.output(2)};
  if (residual == Residual::kNorm) {
    operands.insert(operands.end(), {n.input(3), n.input(4), n.input(5),
                                     n.output(3), n.output(4)});
  }
  if (HasMask(n.attrs())) operands.push_back(n.output(n.num_outputs() - 1));
  const Node* grad = b.Add("batch_norm_grad", operands, n.attrs());
  Grads grads;
  for (size_t i = 0; i < grad->num_outputs(); ++i) {
    grads.push_back(grad->output(i));
  }
  return grads;
}

// --- Interpreter -------------------------------------------------------------

// Calls visit(element, channel) for every element of [N,C,..].
template <typename Visit>
void ForEachElement(const Shape& shape, Visit visit) {
  int64_t plane = 1;
  for (size_t d = 2; d < shape.size(); ++d) plane *= shape[d];
  int64_t i = 0;
  for (int64_t n = 0; n < shape[0]; ++n) {
    for (int64_t c = 0; c < shape[1]; ++c) {
      for (int64_t p = 0; p < plane; ++p) visit(i++, c);
    }
  }
}

double Round(const TensorType& type, EvalMode mode, double x) {
  return mode == EvalMode::kTyped ? RoundTo(type.dtype, x) : x;
}

double ElementsPerChannel(const TensorType& type) {
  return static_cast<double>(type.num_elements() / type.shape[1]);
}

// Computes mean and variance in two passes, the mean first. Statistics are
// rounded like results before they are read.
void BatchStatistics(const Tensor& x, EvalMode mode, Tensor& mean,
                     Tensor& variance) {
  const double count = ElementsPerChannel(x.type);
  ForEachElement(x.type.shape,
                 [&](int64_t i, int64_t c) { mean.data[c] += x.data[i]; });
  for (double& m : mean.data) m /= count;
  ForEachElement(x.type.shape, [&](int64_t i, int64_t c) {
    const double centered = x.data[i] - mean.data[c];
    variance.data[c] += centered * centered;
  });
  for (double& v : variance.data) v = Round(variance.type, mode, v / count);
  for (double& m : mean.data) m = Round(mean.type, mode, m);
}

// Adds (x - mean) / sqrt(variance + epsilon) * gamma + beta to y.
void AddNormalized(const Tensor& x, const Tensor& gamma, const Tensor& beta,
                   const Tensor& mean, const Tensor& variance, double epsilon,
                   std::vector<double>& y) {
  std::vector<double> scale;
  for (size_t c = 0; c < gamma.data.size(); ++c) {
    scale.push_back(gamma.data[c] / std::sqrt(variance.data[c] + epsilon));
  }
  ForEachElement(x.type.shape, [&](int64_t i, int64_t c) {
    y[i] += (x.data[i] - mean.data[c]) * scale[c] + beta.data[c];
  });
}

void EvalTrain(const Node& node, EvalInputs in, EvalOutputs out,
               EvalMode mode) {
  const Residual residual = ResidualOf(node.attrs());
  const double epsilon = node.attrs().Float("epsilon");
  Tensor& y = *out[0];
  BatchStatistics(*in[0], mode, *out[1], *out[2]);
  AddNormalized(*in[0], *in[1], *in[2], *out[1], *out[2], epsilon, y.data);
  if (residual == Residual::kAdd) {
    for (size_t i = 0; i < y.data.size(); ++i) y.data[i] += in[3]->data[i];
  } else if (residual == Residual::kNorm) {
    BatchStatistics(*in[3], mode, *out[3], *out[4]);
    AddNormalized(*in[3], *in[4], *in[5], *out[3], *out[4], epsilon, y.data);
  }
  if (!node.attrs().Bool("relu")) return;
  for (double& v : y.data) v = v < 0 ? 0 : Round(y.type, mode, v);
  if (!HasMask(node.attrs())) return;
  for (size_t i = 0; i < y.data.size(); ++i) {
    out.back()->data[i] = y.data[i] > 0 ? 1 : 0;
  }
}

// Returns dy where y > 0, else 0. Recomputes y if there is no residual.
std::vector<double> MaskedGradient(const Node& node, EvalInputs in,
                                   EvalMode mode) {
  std::vector<double> dy = in[0]->data;
  if (!node.attrs().Bool("relu")) return dy;
  std::vector<double> y(dy.size(), 0);
  if (HasMask(node.attrs())) {
    y = in.back()->data;
  } else {
    AddNormalized(*in[1], *in[2], *in[3], *in[4], *in[5],
                  node.attrs().Float("epsilon"), y);
  }
  for (size_t i = 0; i < dy.size(); ++i) {
    if (!(Round(in[1]->type, mode, y[i]) > 0)) dy[i] = 0;
  }
  return dy;
}

// Computes the gradient of one normalisation; `in` is x, gamma, beta, mean,
// variance.
//   dx = gamma / sigma * (dy - mean(dy) - xhat * mean(dy * xhat))
void NormalizationGradient(const std::vector<double>& dy, EvalInputs in,
                           double epsilon, Tensor& dx, Tensor& dgamma,
                           Tensor& dbeta) {
  const Tensor& x = *in[0];
  const std::vector<double>& mean = in[3]->data;
  const double count = ElementsPerChannel(x.type);
  std::vector<double> inverse;  // 1 / sigma
  for (double v : in[4]->data) inverse.push_back(1 / std::sqrt(v + epsilon));
  ForEachElement(x.type.shape, [&](int64_t i, int64_t c) {
    dbeta.data[c] += dy[i];
    dgamma.data[c] += dy[i] * (x.data[i] - mean[c]) * inverse[c];
  });
  ForEachElement(x.type.shape, [&](int64_t i, int64_t c) {
    const double xhat = (x.data[i] - mean[c]) * inverse[c];
    const double centered =
        dy[i] - (dbeta.data[c] + xhat * dgamma.data[c]) / count;
    dx.data[i] = in[1]->data[c] * inverse[c] * centered;
  });
}

void EvalGrad(const Node& node, EvalInputs in, EvalOutputs out, EvalMode mode) {
  const Residual residual = ResidualOf(node.attrs());
  const double epsilon = node.attrs().Float("epsilon");
  const std::vector<double> dy = MaskedGradient(node, in, mode);
  NormalizationGradient(dy, in.subspan(1, 5), epsilon, *out[0], *out[1],
                        *out[2]);
  if (residual == Residual::kAdd) {
    out[3]->data = dy;
  } else if (residual == Residual::kNorm) {
    NormalizationGradient(dy, in.subspan(6, 5), epsilon, *out[3], *out[4],
                          *out[5]);
  }
}

std::vector<OpDef> MakeNormOps() {
  OpDef train;
  train.kind = OpKind::kBatchNormTrain;
  train.name = "batch_norm_train";
  train.summary =
      "x, gamma, beta, [r | x2, gamma2, beta2] -> y, mean, variance (biased), "
      "[mean2, variance2], [mask]";
  train.min_inputs = 3;
  train.max_inputs = 6;
  train.precision = PrecisionRule::kInfer;
  train.layout = LayoutRule::kSame;
  train.wide_vectors = true;
  train.attrs = {{"epsilon", 1e-5},
                 {"relu", false},
                 {"residual", std::string("none")},
                 {"ranks", int64_t{1}}};
  train.infer = InferTrain;
  train.gradient = GradTrain;
  train.eval = EvalTrain;

  OpDef grad = train;
  grad.kind = OpKind::kBatchNormGrad;
  grad.name = "batch_norm_grad";
  grad.summary =
      "dy, x, gamma, beta, mean, variance, [x2, gamma2, beta2, mean2, "
      "variance2], [mask] -> dx, dgamma, dbeta, [dr | dx2, dgamma2, dbeta2]";
  grad.min_inputs = 6;
  grad.max_inputs = 12;
  grad.infer = InferGrad;
  grad.gradient = nullptr;
  grad.eval = EvalGrad;
  return {train, grad};
}

}  // namespace

std::span<const OpDef> NormOps() {
  static const std::vector<OpDef> ops = MakeNormOps();
  return ops;
}

}  // namespace fusor::ir
