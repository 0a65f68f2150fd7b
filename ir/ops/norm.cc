#include "ir/builder.h"
#include "ir/ops/families.h"
#include "ir/support/error.h"

// Batch normalisation over dimensions 0, 2, 3 of [N,C,H,W] (or 0 of [N,C]),
// kept whole until late (DESIGN.md section 3). The residual attribute says what
// is added before the ReLU:
//
//   "none"  y = relu?(bn(x))
//   "add"   y = relu?(bn(x) + r)            operand r [N,C,H,W]
//   "norm"  y = relu?(bn(x) + bn(x2))       operands x2, gamma2, beta2
//
// With relu and a residual, result `mask` says where y > 0, so that backward
// need not read r; without residual backward recomputes it from x.

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
                "batch_norm_train at {}: its statistics have no gradient; use "
                "stop_gradient",
                n.location());
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

std::vector<OpDef> MakeOps() {
  OpDef train;
  train.name = "batch_norm_train";
  train.summary =
      "x, gamma, beta, [r | x2, gamma2, beta2] -> y, mean, variance (biased), "
      "[mean2, variance2], [mask]";
  train.min_inputs = 3;
  train.max_inputs = 6;
  train.precision = PrecisionRule::kInfer;
  train.layout = LayoutRule::kSame;
  train.attrs = {
      {"epsilon", 1e-5}, {"relu", false}, {"residual", std::string("none")}};
  train.infer = InferTrain;
  train.gradient = GradTrain;

  OpDef grad = train;
  grad.name = "batch_norm_grad";
  grad.summary =
      "dy, x, gamma, beta, mean, variance, [x2, gamma2, beta2, mean2, "
      "variance2], [mask] -> dx, dgamma, dbeta, [dr | dx2, dgamma2, dbeta2]";
  grad.min_inputs = 6;
  grad.max_inputs = 12;
  grad.infer = InferGrad;
  grad.gradient = nullptr;
  return {train, grad};
}

}  // namespace

std::span<const OpDef> NormOps() {
  static const std::vector<OpDef> ops = MakeOps();
  return ops;
}

}  // namespace fusor::ir
