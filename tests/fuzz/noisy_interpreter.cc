#include "tests/fuzz/noisy_interpreter.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "ir/op.h"
#include "ir/support/philox.h"

namespace fusor::fuzz {
namespace {

using ir::DType;
using ir::OpKind;
using ir::Tensor;
using ir::Value;

// Returns half a unit in the last place, relative.
double Epsilon(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x1p-53;
    case DType::kF16:
      return 0x1p-11;
    case DType::kBF16:
      return 0x1p-8;
    default:
      return 0x1p-24;
  }
}

// Returns the relative error of a sum. Sums accumulate at least in f32.
double SumEpsilon(DType dtype) {
  return Epsilon(dtype == DType::kF64 ? dtype : DType::kF32);
}

double SmallestNormal(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x1p-1022;
    case DType::kF16:
      return 0x1p-14;
    default:
      return 0x1p-126;
  }
}

// Returns true for gradients of pooling: oneDNN adds overlapping windows in the
// dtype of the result.
bool AddsInItsDtype(const ir::Node& node) {
  return node.kind() == OpKind::kMaxPoolGrad ||
         node.kind() == OpKind::kAvgPoolGrad;
}

// Returns true for ops with exact results, which move or select elements.
bool IsExact(const ir::Node& node) {
  const ir::OpDef& op = node.op();
  switch (op.fusion) {
    case ir::FusionKind::kInjective:
    case ir::FusionKind::kIndexed:
    case ir::FusionKind::kSource:
      return true;
    case ir::FusionKind::kReduce:
      switch (ir::NodeScalar(node)) {
        case ir::ScalarOp::kAdd:
        case ir::ScalarOp::kMul:
          return false;
        default:
          return true;
      }
    case ir::FusionKind::kElementwise:
      switch (ir::NodeScalar(node)) {
        case ir::ScalarOp::kIdentity:
          return Epsilon(node.output()->type().dtype) <=
                 Epsilon(node.input(0)->type().dtype);
        case ir::ScalarOp::kNeg:
        case ir::ScalarOp::kAbs:
        case ir::ScalarOp::kFloor:
        case ir::ScalarOp::kRelu:
        case ir::ScalarOp::kMaximum:
        case ir::ScalarOp::kMinimum:
        case ir::ScalarOp::kSelect:
          return true;
        default:
          return false;
      }
    default:
      return op.precision == ir::PrecisionRule::kFollow &&
             node.kind() != OpKind::kMaxPoolGrad;
  }
}

double Largest(const Tensor& tensor) {
  double largest = 0;
  for (const double x : tensor.data) {
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
  }
  return largest;
}

double Smallest(const Tensor& tensor) {
  double smallest = std::numeric_limits<double>::infinity();
  for (const double x : tensor.data)
    smallest = std::min(smallest, std::fabs(x));
  return smallest;
}

// Returns the magnitude of the terms of dx, dgamma and dbeta before they
// cancel. A kernel may read x before it is rounded, though the mean is that of
// the rounded x: dgamma (`sums_x`) then sums up x's rounding errors.
double NormGradientScale(const ir::Node& node,
                         std::span<const Tensor* const> in, bool sums_x) {
  const double epsilon = node.attrs().Float("epsilon");
  const double dy = Largest(*in[0]);
  const double elements = static_cast<double>(in[1]->data.size());
  double scale = dy * std::sqrt(elements);
  for (size_t i = 1; i + 4 < in.size() && i <= 6; i += 5) {
    const double deviation = std::sqrt(Smallest(*in[i + 4]) + epsilon);
    const double x = Largest(*in[i]) / deviation;
    scale = std::max(scale,
                     dy * Largest(*in[i + 1]) / deviation * std::max(1.0, x));
    if (!sums_x) continue;
    const DType dtype = in[i]->type.dtype;
    scale = std::max(scale, dy * x * std::sqrt(elements) * Epsilon(dtype) /
                                SumEpsilon(dtype));
  }
  return 8 * scale;
}

// Returns the magnitude of the terms of a normalised result. A kernel may
// compute it as x * scale + shift. Both cancel in a channel of one element,
// which equals its mean.
double NormScale(const ir::Node& node, std::span<const Tensor* const> in,
                 std::span<const Tensor> results) {
  const double epsilon = node.attrs().Float("epsilon");
  const bool two = node.attrs().String("residual") == "norm";
  double scale = Largest(results[0]);
  for (size_t i = 0; i < (two ? 2 : 1); ++i) {
    const double deviation = std::sqrt(Smallest(results[2 + 2 * i]) + epsilon);
    scale = std::max(scale,
                     Largest(*in[3 * i]) * Largest(*in[3 * i + 1]) / deviation);
  }
  return 8 * scale;
}

// Returns the number of elements that have the most frequent value.
size_t MostEqual(const Tensor& tensor) {
  std::unordered_map<double, size_t> counts;
  size_t most = 0;
  for (const double x : tensor.data) most = std::max(most, ++counts[x]);
  return most;
}

// Returns the magnitude that the terms of a sum may have before they cancel.
// Rounding errors of similar terms do not cancel, since many partial sums are
// rounded in the same direction. In f64 that is allowed for all terms: the
// allowance remains far below the effect of a wrong term.
double SumScale(const ir::Node& node, const Tensor& input,
                const Tensor& output) {
  const auto size = static_cast<double>(input.data.size());
  const double similar = output.type.dtype == DType::kF64
                             ? size
                             : static_cast<double>(MostEqual(input));
  double sums = static_cast<double>(output.data.size());
  if (node.op_name() == "cumsum") {
    sums /= static_cast<double>(input.type.shape[node.attrs().Int("dim")]);
  }
  const double terms = similar / sums;
  return std::max(Largest(input) * std::sqrt(size),
                  Largest(output) * terms / 64);
}

// Returns the magnitude that the terms of result `index` may have before they
// cancel, or 0 if the op sums nothing.
double TermScale(const ir::Node& node, std::span<const Tensor* const> inputs,
                 std::span<const Tensor> results, size_t index) {
  const Tensor& output = results[index];
  switch (node.op().fusion) {
    case ir::FusionKind::kReduce:
    case ir::FusionKind::kLibrary:
    case ir::FusionKind::kOpaque:
    case ir::FusionKind::kSeparate:
      break;
    default:
      return 0;
  }
  if (node.kind() == OpKind::kBatchNormGrad) {
    const bool dx = output.type.shape == inputs[1]->type.shape;
    return NormGradientScale(node, inputs, !dx);
  }
  if (node.kind() == OpKind::kBatchNormTrain) {
    if (index == 0) return NormScale(node, inputs, results);
    const double x = Largest(*inputs[index <= 2 ? 0 : 3]);
    // The terms of a mean may cancel.
    if (index % 2 == 1) return std::max(8 * Largest(output), x);
    // Rounding of the mean affects a variance's deviations.
    return 8 * std::max(Largest(output), SumEpsilon(output.type.dtype) * x * x);
  }
  if (AddsInItsDtype(node)) {
    return std::max(Largest(output), Largest(*inputs[0]));
  }
  if (node.kind() == OpKind::kReduce || node.op_name() == "cumsum") {
    return std::max(Largest(output), SumScale(node, *inputs[0], output));
  }
  double product = 1;
  double terms = 1;
  // A third operand is a bias.
  for (const Tensor* input : inputs.first(std::min<size_t>(inputs.size(), 2))) {
    if (!ir::IsFloat(input->type.dtype)) continue;
    product *= std::max(Largest(*input), 1e-30);
    terms = std::max(terms, static_cast<double>(input->data.size()));
  }
  if (node.kind() == OpKind::kSumOfSquares) product *= product;
  return std::max(Largest(output), product * std::sqrt(terms));
}

bool IsFinite(const Tensor& tensor) {
  return std::all_of(tensor.data.begin(), tensor.data.end(),
                     [](double x) { return std::isfinite(x); });
}

// Returns true for a convolution or its gradient with a non-finite operand: any
// element of the result may be NaN (ir/graph.h). A third operand is a bias.
bool MaySpreadNan(const ir::Node& node, std::span<const Tensor* const> in) {
  return node.op_name().starts_with("conv2d") &&
         !(IsFinite(*in[0]) && IsFinite(*in[1]));
}

// Returns the largest magnitude that is added to element `i` of a normalised
// value or its gradient and may have been rounded to the result's dtype before.
// That is a residual with eager rounding, or a gradient that the sums of a
// fused gradient read before it is rounded.
double SummandAt(const ir::Node& node, std::span<const Tensor* const> in,
                 size_t i) {
  if (node.kind() == OpKind::kBatchNormGrad) {
    double slope = 0;
    for (size_t k = 1; k + 4 < in.size() && k <= 6; k += 5) {
      const double epsilon = node.attrs().Float("epsilon");
      slope = std::max(slope, Largest(*in[k + 1]) /
                                  std::sqrt(Smallest(*in[k + 4]) + epsilon));
    }
    return Largest(*in[0]) * slope;
  }
  if (!node.attrs().Has("residual")) return 0;
  const std::string& residual = node.attrs().String("residual");
  if (residual == "add") return std::fabs(in.back()->data[i]);
  if (residual != "norm") return 0;
  // The residual is normalised with the last two operands. Few elements exceed
  // five standard deviations.
  return 5 * Largest(*in[in.size() - 2]) + Largest(*in.back());
}

class Noise {
 public:
  // With direction 1 or -1, rounds all results up or down, as a kernel may do.
  // With 0, rounds each at random.
  Noise(uint64_t seed, double amplitude, int direction)
      : seed_(seed), amplitude_(amplitude), direction_(direction) {}

  void Move(const ir::Node& node, std::span<const Tensor* const> inputs,
            std::span<Tensor> results) {
    // Uses the results before noise is added.
    std::vector<double> scales;
    for (size_t i = 0; i < results.size(); ++i) {
      scales.push_back(TermScale(node, inputs, results, i));
    }
    for (size_t i = 0; i < results.size(); ++i) {
      Move(node, inputs, scales[i], results[i]);
    }
  }

  // Interprets the node. If a normalisation has a ReLU, shifts it by the
  // rounding errors of its result and of each channel's residual, so that
  // samples disagree on the mask where the ReLU's operand cancels.
  std::vector<Tensor> Interpret(const ir::Node& node,
                                std::vector<const Tensor*> operands) {
    auto results = InterpretNode(node, operands, ir::EvalMode::kTyped);
    if (node.kind() != OpKind::kBatchNormTrain || !node.attrs().Bool("relu")) {
      return results;
    }
    const DType dtype = results[0].type.dtype;
    double summand = 0;
    for (size_t i = 0; i < results[0].data.size(); ++i) {
      summand = std::max(summand, SummandAt(node, operands, i));
    }
    const double amount = Signed() * amplitude_ * SumEpsilon(dtype) *
                          NormScale(node, operands, results);
    Tensor shift = *operands[2];
    for (double& x : shift.data) {
      x += amount + Signed() * amplitude_ * Epsilon(dtype) * summand;
    }
    operands[2] = &shift;
    return InterpretNode(node, operands, ir::EvalMode::kTyped);
  }

  bool Flip() { return Signed() < 0; }

 private:
  void Move(const ir::Node& node, std::span<const Tensor* const> inputs,
            double scale, Tensor& tensor) {
    const DType dtype = tensor.type.dtype;
    if (!ir::IsFloat(dtype) || IsExact(node)) return;
    const double epsilon = Epsilon(dtype);
    const double of_sums =
        (AddsInItsDtype(node) ? epsilon : SumEpsilon(dtype)) * scale;
    const double tiny = SmallestNormal(dtype);
    // Sums that cancel may all be exactly 0, which affects a division.
    const bool cancels = Flip();
    const bool adds = (node.kind() == OpKind::kBatchNormTrain ||
                       node.kind() == OpKind::kBatchNormGrad) &&
                      tensor.type == node.output(0)->type();
    for (size_t i = 0; i < tensor.data.size(); ++i) {
      double& x = tensor.data[i];
      const double summand = adds ? SummandAt(node, inputs, i) : 0;
      if (!std::isfinite(x) || (x == 0 && summand == 0)) {
        if (x == 0 && of_sums > 0 && !cancels) {
          x = ir::RoundTo(dtype, Signed() * of_sums);
        }
        continue;
      }
      if (cancels && std::fabs(x) < amplitude_ * of_sums) {
        x = 0;
        continue;
      }
      const double u = direction_ != 0 ? direction_ : Signed();
      if (std::fabs(x) < tiny && summand == 0) {
        if (u > 0) x = 0;  // subnormal numbers may be flushed
        continue;
      }
      x = ir::RoundTo(dtype,
                      x + amplitude_ * (u * epsilon * (std::fabs(x) + summand) +
                                        Signed() * of_sums));
    }
  }

  // Returns a number in [-1, 1).
  double Signed() {
    return 2 * RandomUniform(static_cast<int64_t>(seed_), 0, 0, 0, index_++) -
           1;
  }

  const uint64_t seed_;
  const double amplitude_;
  const int direction_;
  uint64_t index_ = 0;
};

// Returns whether a fused kernel reads operands of the op before they are
// rounded to 16 bits.
bool ReadsUnrounded(const ir::Node& node) {
  switch (node.op().fusion) {
    case ir::FusionKind::kElementwise:
      return node.kind() != OpKind::kCompare;
    case ir::FusionKind::kInjective:
    case ir::FusionKind::kReduce:
      return true;
    default:
      return false;
  }
}

bool Is16Bit(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16;
}

Tensor Rounded(Tensor tensor) {
  for (double& x : tensor.data) x = ir::RoundTo(tensor.type.dtype, x);
  return tensor;
}

// How to interpret a graph once.
struct SampleOptions {
  bool spread;     // Spreads some NaN that libraries may spread.
  bool unrounded;  // Some values of 16 bits are not rounded within fusions.
};

// Interprets the graph with noise. Sets `may_spread` if a library may spread a
// NaN (MaySpreadNan).
std::vector<Tensor> Sample(const ir::Graph& graph,
                           std::span<const Tensor> inputs, Noise& noise,
                           const SampleOptions& options, bool& may_spread) {
  std::unordered_map<const Value*, Tensor> values;
  for (size_t i = 0; i < inputs.size(); ++i) values[graph.input(i)] = inputs[i];
  for (const auto& node : graph.nodes()) {
    std::vector<Tensor> rounded;
    rounded.reserve(node->num_inputs());
    std::vector<const Tensor*> operands;
    for (const Value* input : node->inputs()) {
      operands.push_back(&values.at(input));
      if (!options.unrounded || ReadsUnrounded(*node)) continue;
      rounded.push_back(Rounded(*operands.back()));
      operands.back() = &rounded.back();
    }
    if (options.unrounded && Is16Bit(node->output()->type().dtype) &&
        node->op().fusion == ir::FusionKind::kElementwise && noise.Flip()) {
      values[node->output()] = std::move(
          InterpretNode(*node, operands, ir::EvalMode::kExact).front());
      continue;
    }
    auto results = noise.Interpret(*node, operands);
    const bool may = MaySpreadNan(*node, operands);
    may_spread |= may;
    // Each library call spreads independently.
    const bool spreads = options.spread && may && noise.Flip();
    noise.Move(*node, operands, results);
    for (size_t i = 0; i < results.size(); ++i) {
      if (spreads) {
        // To all elements, or to some, such as those that meet padding.
        const bool all = noise.Flip();
        for (double& x : results[i].data) {
          if (all || noise.Flip()) x = std::nan("");
        }
      }
      values[node->output(i)] = std::move(results[i]);
    }
  }
  std::vector<Tensor> outputs;
  for (const ir::Output& output : graph.outputs()) {
    outputs.push_back(Rounded(values.at(output.value)));
  }
  return outputs;
}

// The results that the samples and the noiseless run permit.
struct Allowed {
  bool anything = false;  // samples disagree by more than a number
  double center = 0;
  double tolerance = 0;  // 0 for infinite values
};

Allowed AllowedAt(const NoisyOutputs& expected, size_t index, size_t element) {
  const Tensor& typed = expected.typed[index];
  Allowed allowed;
  allowed.center = typed.data[element];
  double deviation = 0;
  for (const auto& sample : expected.samples) {
    const double x = sample[index].data[element];
    if (std::isnan(x) != std::isnan(allowed.center) ||
        (std::isinf(x) || std::isinf(allowed.center)) !=
            (x == allowed.center && std::isinf(x))) {
      allowed.anything = true;
      return allowed;
    }
    if (std::isfinite(x)) {
      deviation = std::max(deviation, std::fabs(x - allowed.center));
    }
  }
  const DType dtype = typed.type.dtype;
  if (!ir::IsFloat(dtype)) {
    allowed.anything = deviation > 0;
    return allowed;
  }
  if (std::isfinite(allowed.center)) {
    allowed.tolerance = 8 * deviation +
                        8 * Epsilon(dtype) * std::fabs(allowed.center) +
                        2 * SmallestNormal(dtype);
  }
  return allowed;
}

}  // namespace

NoisyOutputs InterpretNoisy(const ir::Graph& graph,
                            std::span<const Tensor> inputs,
                            const NoiseOptions& options) {
  NoisyOutputs outputs;
  outputs.typed = ir::Interpret(graph, inputs, ir::EvalMode::kTyped,
                                [&](const Value&, const Tensor& tensor) {
                                  if (tensor.type.dtype != DType::kF16) return;
                                  outputs.overflow |= !IsFinite(tensor);
                                });
  for (int i = 0; i < options.samples; ++i) {
    const int direction = i % 6 == 2 ? 1 : i % 6 == 4 ? -1 : 0;
    Noise noise(options.seed + static_cast<uint64_t>(i), options.amplitude,
                direction);
    outputs.samples.push_back(Sample(
        graph, inputs, noise, {.spread = i % 2 == 1, .unrounded = i % 6 == 5},
        outputs.may_spread));
  }
  return outputs;
}

std::optional<std::string> Mismatch(const NoisyOutputs& expected, size_t index,
                                    const Tensor& actual) {
  const Tensor& typed = expected.typed[index];
  if (actual.data.size() != typed.data.size() ||
      actual.type.dtype != typed.type.dtype) {
    return fmt::format("got {}, expected {}", ir::ToString(actual.type),
                       ir::ToString(typed.type));
  }
  for (size_t i = 0; i < typed.data.size(); ++i) {
    const Allowed allowed = AllowedAt(expected, index, i);
    const double x = actual.data[i];
    if (allowed.anything || x == allowed.center ||
        (std::isnan(x) && std::isnan(allowed.center)) ||
        std::fabs(x - allowed.center) <= allowed.tolerance) {
      continue;
    }
    return fmt::format("element {} of {}: got {}, expected {} within {:.2g}", i,
                       typed.data.size(), x, allowed.center, allowed.tolerance);
  }
  return std::nullopt;
}

}  // namespace fusor::fuzz
