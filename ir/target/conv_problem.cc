#include "ir/target/conv_problem.h"

#include <algorithm>

#include "ir/library_fusion.h"
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
  const Node& op = LibraryOp(node);
  if (!op.HasTrait(OpTrait::kConvolution)) return std::nullopt;
  const TensorType& a = op.input(0)->type();
  const TensorType& b = op.input(1)->type();
  TensorType result = op.output()->type();
  // The body of a library fusion may round it later.
  if (IsLibraryFusion(node)) result.dtype = node.output()->type().dtype;
  if (op.kind() == OpKind::kConv2dGradWeight) {
    return Convolution{ConvKind::kGradWeight, a, result, b};
  }
  if (op.kind() == OpKind::kConv2dGradInput) {
    return Convolution{ConvKind::kGradInput, result, b, a};
  }
  return Convolution{ConvKind::kForward, a, b, result};
}

bool HasWinogradGeometry(const Node& node) {
  return IsPlainConvolution(node) &&
         HasWinogradGeometry(ConvolutionOf(node)->weight.shape, node.attrs());
}

bool HasWinogradGeometry(const Shape& weight, const Attrs& attrs) {
  return weight[2] == 3 && weight[3] == 3 && AreOnes(attrs.Ints("stride")) &&
         AreOnes(attrs.Ints("dilation")) && attrs.Int("groups") == 1;
}

bool IsPlainConvolution(const Node& node) {
  return node.HasTrait(OpTrait::kConvolution);
}

std::string ConvolutionProblem(const Node& node) {
  const auto conv = ConvolutionOf(node);
  if (!conv.has_value()) return "";
  const Node& op = LibraryOp(node);
  const Attrs& attrs = op.attrs();
  const std::string plain = fmt::format(
      "{} x={} w={} stride={} pad={} dilation={} groups={}", op.op_name(),
      Numbers(conv->x.shape, "x"), Numbers(conv->weight.shape, "x"),
      Numbers(attrs.Ints("stride"), ","), Numbers(attrs.Ints("pad"), ","),
      Numbers(attrs.Ints("dilation"), ","), attrs.Int("groups"));
  return IsLibraryFusion(node) ? plain + " fused=" + FusedOps(*node.body())
                               : plain;
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
