#include "ir/target/conv_problem.h"

#include <algorithm>

#include "ir/support/error.h"
#include "ir/support/str.h"
#include "ir/target/cost.h"

namespace fusor::ir {
namespace {

std::string Numbers(const std::vector<int64_t>& numbers,
                    std::string_view separator) {
  return Join(numbers, separator,
              [](int64_t number) { return std::to_string(number); });
}

bool AreOnes(const std::vector<int64_t>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(),
                     [](int64_t number) { return number == 1; });
}

// Returns the fused operations, " norm=relu statistics"; "" if there are none.
// A final bias and ReLU cost nothing and are not listed.
std::string PatternText(const Attrs& attrs) {
  std::string text;
  for (const char* name : {"prologue", "norm"}) {
    if (!attrs.Has(name) || attrs.String(name).empty()) continue;
    text += fmt::format(" {}={}", name, attrs.String(name));
  }
  for (const char* name : {"accumulate", "add", "statistics"}) {
    if (attrs.Has(name) && attrs.Bool(name)) text += fmt::format(" {}", name);
  }
  return text;
}

// F(tile x tile, 3x3).
struct Winograd {
  int64_t tile;
  int64_t points;        // multiplications per tile and channel pair
  int64_t element_size;  // bytes
  bool fused;            // transformed activations stay in a cache
};

Winograd WinogradOf(DType dtype) {
  return dtype == DType::kF32 ? Winograd{4, 36, 4, false}
                              : Winograd{2, 16, 2, true};
}

// Returns the tiles that cover the last two dimensions.
int64_t Tiles(const Shape& shape, int64_t tile) {
  return (shape[2] + tile - 1) / tile * ((shape[3] + tile - 1) / tile);
}

}  // namespace

std::optional<Convolution> ConvolutionOf(const Node& node) {
  if (!node.HasTrait(OpTrait::kConvolution)) return std::nullopt;
  const TensorType& a = node.input(0)->type();
  const TensorType& b = node.input(1)->type();
  const TensorType& result = node.output()->type();
  if (node.kind() == OpKind::kConv2dGradWeight) {
    return Convolution{ConvKind::kGradWeight, a, result, b};
  }
  if (node.kind() == OpKind::kConv2dGradInput) {
    return Convolution{ConvKind::kGradInput, result, b, a};
  }
  return Convolution{ConvKind::kForward, a, b, result};
}

bool HasWinogradGeometry(const Node& node) {
  const auto conv = ConvolutionOf(node);
  return conv.has_value() &&
         HasWinogradGeometry(conv->weight.shape, node.attrs());
}

bool HasWinogradGeometry(const Shape& weight, const Attrs& attrs) {
  return weight[2] == 3 && weight[3] == 3 && AreOnes(attrs.Ints("stride")) &&
         AreOnes(attrs.Ints("dilation")) && attrs.Int("groups") == 1;
}

bool IsPlainConvolution(const Node& node) {
  return ConvolutionOf(node).has_value() && PatternText(node.attrs()).empty();
}

std::string ConvolutionProblem(const Node& node) {
  const auto conv = ConvolutionOf(node);
  if (!conv.has_value()) return "";
  const Attrs& attrs = node.attrs();
  const std::string plain = fmt::format(
      "{} x={} w={} stride={} pad={} dilation={} groups={}", node.op_name(),
      Numbers(conv->x.shape, "x"), Numbers(conv->weight.shape, "x"),
      Numbers(attrs.Ints("stride"), ","), Numbers(attrs.Ints("pad"), ","),
      Numbers(attrs.Ints("dilation"), ","), attrs.Int("groups"));
  return plain + PatternText(attrs);
}

int64_t DirectNs(const Node& node, const Target& target) {
  const bool wide = ConvolutionOf(node)->x.dtype == DType::kF32;
  const double peak = wide ? target.peak_gflops_f32 : target.peak_gflops_16;
  return static_cast<int64_t>(2.0 * static_cast<double>(NodeMacs(node)) / peak);
}

int64_t WinogradNs(const Node& node, const Target& target) {
  FUSOR_ASSERT(HasWinogradGeometry(node), "{}", node.op_name());
  const Convolution conv = *ConvolutionOf(node);
  const Winograd winograd = WinogradOf(conv.x.dtype);
  const auto points = static_cast<double>(winograd.points);
  const Shape& results =
      (conv.kind == ConvKind::kGradInput ? conv.x : conv.y).shape;
  const int64_t tiles = results[0] * Tiles(results, winograd.tile);
  const int64_t channels = conv.weight.shape[0] * conv.weight.shape[1];
  const double multiplications =
      points * static_cast<double>(tiles) * static_cast<double>(channels);
  // A transformed tensor is written and read back. Forward and data gradient
  // stream one of x and y through the cache, tile by tile; a weight gradient
  // needs both transformed completely before it starts.
  double passes = points / static_cast<double>(winograd.tile * winograd.tile);
  if (conv.kind == ConvKind::kGradWeight) passes *= 2;
  if (winograd.fused) passes = 0;
  const double elements = static_cast<double>(conv.x.num_elements()) +
                          static_cast<double>(conv.y.num_elements());
  const double bytes =
      static_cast<double>(winograd.element_size) *
      (elements * (1 + passes) + 2 * points * static_cast<double>(channels));
  const double peak = conv.x.dtype == DType::kF32 ? target.peak_gflops_f32
                                                  : target.peak_gflops_16;
  return static_cast<int64_t>(2 * multiplications /
                                  (peak * target.winograd_efficiency) +
                              bytes / std::max(target.memory_gb_per_s, 1.0));
}

}  // namespace fusor::ir
