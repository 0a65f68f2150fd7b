#include "ir/ops/conv_pattern.h"

#include "ir/support/error.h"

namespace fusor::ir {
namespace {

using Types = std::span<const TensorType>;

constexpr size_t kNormOperands = 5;  // x, mean, 1 / deviation, scale, bias
constexpr size_t kNormSums = 5;      // gradients of scale and bias, a, b, c

TensorType PerChannel(const TensorType& like) {
  return {DType::kF32, {like.shape[1]}, {}};
}

double Round(const TensorType& type, EvalMode mode, double x) {
  return mode == EvalMode::kTyped ? RoundTo(type.dtype, x) : x;
}

// Calls visit(element, channel) for every element of [N,C,H,W].
template <typename Visit>
void ForEachElement(const Tensor& tensor, Visit visit) {
  const Shape& shape = tensor.type.shape;
  const int64_t plane = shape[2] * shape[3];
  for (size_t i = 0; i < tensor.data.size(); ++i) {
    visit(i, static_cast<size_t>(static_cast<int64_t>(i) / plane % shape[1]));
  }
}

void CheckVectors(Types vectors, int64_t channels) {
  for (const TensorType& v : vectors) {
    FUSOR_CHECK(v.shape == Shape{channels} && IsFloat(v.dtype), kGraph,
                "expected vectors of {} channels", channels);
  }
}

size_t NumNorms(const std::string& norm) {
  return norm.empty() ? 0 : norm == "dual" ? 2 : 1;
}

bool HasAddend(const Attrs& attrs) {
  return attrs.Bool("accumulate") || attrs.Bool("add");
}

// Adds (x - mean) / deviation * scale + bias to y; `in` holds x, mean, 1 /
// deviation, scale and bias.
void AddNormalized(EvalInputs in, std::vector<double>& y) {
  ForEachElement(*in[0], [&](size_t i, size_t c) {
    const double centered = in[0]->data[i] - in[1]->data[c];
    y[i] += centered * in[2]->data[c] * in[3]->data[c] + in[4]->data[c];
  });
}

// Computes the gradients of scale and bias of a normalisation of `in` whose
// result has gradient dz, and a, b, c of the gradient of x: a * dz + b * x + c.
void EvalSums(EvalInputs in, const Tensor& dz, EvalOutputs out) {
  Tensor& scale_grad = *out[0];
  Tensor& bias_grad = *out[1];
  ForEachElement(dz, [&](size_t i, size_t c) {
    bias_grad.data[c] += dz.data[i];
    scale_grad.data[c] +=
        dz.data[i] * (in[0]->data[i] - in[1]->data[c]) * in[2]->data[c];
  });
  const size_t channels = bias_grad.data.size();
  const double count = static_cast<double>(dz.data.size() / channels);
  for (size_t c = 0; c < channels; ++c) {
    const double inverse = in[2]->data[c];
    const double a = in[3]->data[c] * inverse;
    const double b = -a * inverse * scale_grad.data[c] / count;
    out[2]->data[c] = a;
    out[3]->data[c] = b;
    out[4]->data[c] = -a * bias_grad.data[c] / count - b * in[1]->data[c];
  }
}

}  // namespace

bool HasPrologue(const Attrs& attrs) {
  return !attrs.String("prologue").empty();
}

bool StoresPrologue(const Attrs& attrs) {
  return HasPrologue(attrs) && attrs.String("prologue") != "norm";
}

void CheckPrologue(Types in, const Attrs& attrs, bool gradient) {
  if (!HasPrologue(attrs)) return;
  const std::string& kind = attrs.String("prologue");
  const bool join = kind == "join" && !gradient;
  const bool dual = kind == "dual" && !gradient;
  FUSOR_CHECK(kind == "norm" || join || dual, kGraph,
              "prologue {}: expected norm{}", kind,
              gradient ? "" : ", join or dual");
  const size_t expected = dual ? 7 : join ? 5 : 4;
  FUSOR_CHECK(in.size() == expected, kGraph,
              "prologue {}: expected {} operands, got {}", kind, expected,
              in.size());
  CheckVectors(in.subspan(2, 2), in[0].shape[1]);
  if (!join && !dual) return;
  FUSOR_CHECK(in[4].shape == in[0].shape && in[4].dtype == in[0].dtype, kGraph,
              "prologue {}: expected operand 4 to have the first one's type",
              kind);
  CheckVectors(in.subspan(5), in[0].shape[1]);
}

const Tensor& EvalPrologue(const Node& node, EvalInputs in, EvalMode mode,
                           Tensor& held) {
  if (!HasPrologue(node.attrs())) return *in[0];
  held = *in[0];
  ForEachElement(held, [&](size_t i, size_t c) {
    double y = held.data[i] * in[2]->data[c] + in[3]->data[c];
    if (in.size() == 5) y += in[4]->data[i];
    if (in.size() == 7) {
      y += in[4]->data[i] * in[5]->data[c] + in[6]->data[c];
    }
    held.data[i] = y < 0 ? 0 : Round(held.type, mode, y);
  });
  return held;
}

void AddStatistics(std::vector<TensorType>& results) {
  results.insert(results.end(), 2, PerChannel(results[0]));
}

void EvalStatistics(EvalOutputs out, EvalMode mode) {
  Tensor& y = *out[0];
  ForEachElement(y, [&](size_t i, size_t c) {
    y.data[i] = Round(y.type, mode, y.data[i]);
    out[1]->data[c] += y.data[i];
    out[2]->data[c] += y.data[i] * y.data[i];
  });
}

void CheckGradientOperands(Types in, const TensorType& result,
                           const Attrs& attrs) {
  const std::string& norm = attrs.String("norm");
  FUSOR_CHECK(
      norm.empty() || norm == "relu" || norm == "join" || norm == "dual",
      kGraph, "norm {}: expected relu, join or dual", norm);
  FUSOR_CHECK(!attrs.Bool("accumulate") || (norm.empty() && !attrs.Bool("add")),
              kGraph, "accumulate: expected no add and no norm");
  const size_t expected = 2 + (HasAddend(attrs) ? 1 : 0) +
                          kNormOperands * NumNorms(norm) +
                          (norm == "join" ? 1 : 0);
  FUSOR_CHECK(in.size() == expected, kGraph, "expected {} operands, got {}",
              expected, in.size());
  for (size_t i = 2; i < in.size(); ++i) {
    if (in[i].rank() == 1) {
      CheckVectors(in.subspan(i, 1), result.shape[1]);
      continue;
    }
    FUSOR_CHECK(in[i].shape == result.shape && in[i].dtype == result.dtype,
                kGraph, "expected operand {} to have the result's type", i);
  }
}

void AddGradientSums(std::vector<TensorType>& results, const Attrs& attrs) {
  results.insert(results.end(), kNormSums * NumNorms(attrs.String("norm")),
                 PerChannel(results[0]));
}

void FinishGradInput(const Node& node, EvalInputs in, EvalOutputs out,
                     EvalMode mode) {
  Tensor& dz = *out[0];
  size_t next = 2;
  if (HasAddend(node.attrs())) {
    const Tensor& addend = *in[next++];
    for (size_t i = 0; i < dz.data.size(); ++i) dz.data[i] += addend.data[i];
  }
  const std::string& norm = node.attrs().String("norm");
  if (norm.empty()) return;
  std::vector<EvalInputs> norms;
  std::vector<double> y(dz.data.size(), 0);
  for (size_t n = 0; n < NumNorms(norm); ++n, next += kNormOperands) {
    norms.push_back(in.subspan(next, kNormOperands));
    AddNormalized(norms.back(), y);
  }
  for (size_t i = 0; i < y.size(); ++i) {
    if (norm == "join") y[i] += in[next]->data[i];
    dz.data[i] = y[i] > 0 ? Round(dz.type, mode, dz.data[i]) : 0;
  }
  for (size_t n = 0; n < norms.size(); ++n) {
    EvalSums(norms[n], dz, out.subspan(1 + n * kNormSums, kNormSums));
  }
}

}  // namespace fusor::ir
