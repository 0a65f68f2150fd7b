#include "ir/target/conv_problem.h"

#include <algorithm>

#include "ir/library_fusion.h"
#include "ir/support/integer_math.h"
#include "ir/support/str.h"

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

constexpr int64_t kSmallTile = 64;
constexpr int64_t kLargeTile = 128;

int64_t TileExtent(int64_t extent) {
  const bool large =
      CeilDiv(extent, kLargeTile) * 2 == CeilDiv(extent, kSmallTile);
  return large ? kLargeTile : kSmallTile;
}

// Returns whether the matmul has row-major operands and results whose rows are
// whole vectors, and more than one of each index.
bool HasVectorRows(const Node& matmul) {
  const auto fits = [](const TensorType& type) {
    const Shape& shape = type.shape;
    return type.layout.is_row_major() && shape.back() % kTensorCoreUnit == 0 &&
           shape[shape.size() - 2] > 1;
  };
  return fits(matmul.input(0)->type()) && fits(matmul.input(1)->type()) &&
         fits(matmul.output()->type());
}

}  // namespace

int64_t TensorCoreTileRows(int64_t rows) { return TileExtent(rows); }

// Warps that multiply alone hold parts of the factors, too, and so have
// registers for the sums of fewer columns.
int64_t TensorCoreTileColumns(int64_t columns, const Target& target) {
  return target.has_wgmma() ? TileExtent(columns) : kSmallTile;
}

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
         AreOnes(attrs.Ints("dilation")) && attrs.Ints("pad").size() == 2;
}

bool IsPlainConvolution(const Node& node) {
  return node.HasTrait(OpTrait::kConvolution);
}

bool IsDepthwise(const Node& node) {
  if (!IsPlainConvolution(node)) return false;
  const auto conv = ConvolutionOf(node);
  const Shape& weight = conv->weight.shape;
  const Attrs& attrs = node.attrs();
  return attrs.Int("groups") == weight[0] && weight[1] == 1 &&
         conv->x.shape[1] == weight[0] && AreOnes(attrs.Ints("dilation")) &&
         attrs.Ints("pad").size() == 2;
}

bool IsStridedDepthwiseGradient(const Node& node) {
  return node.kind() == OpKind::kConv2dGradInput && IsDepthwise(node) &&
         !AreOnes(node.attrs().Ints("stride"));
}

bool FitsTensorCores(const Node& node) {
  const auto conv = ConvolutionOf(node);
  if (!conv.has_value() && node.kind() != OpKind::kMatmul) return false;
  const Node& op = LibraryOp(node);
  const DType dtype = op.input(0)->type().dtype;
  const DType result = op.output()->type().dtype;
  const bool half = dtype == DType::kF16 || dtype == DType::kBF16;
  if (!half || op.input(1)->type().dtype != dtype ||
      (result != dtype && result != DType::kF32)) {
    return false;
  }
  // A kernel computes the operands tile by tile, some of them again and again.
  const bool returns_operand =
      IsLibraryFusion(node) &&
      std::ranges::any_of(node.body()->outputs(), [&](const Output& output) {
        return output.value == op.input(0) || output.value == op.input(1);
      });
  if (returns_operand) return false;
  if (!conv.has_value()) return HasVectorRows(node);
  const Shape& w = conv->weight.shape;
  const Attrs& attrs = op.attrs();
  const bool pixels = conv->x.num_elements() > conv->x.shape[1];  // several
  return pixels && w[2] == 1 && w[3] == 1 && attrs.Int("groups") == 1 &&
         AreOnes(attrs.Ints("stride")) &&
         std::ranges::all_of(attrs.Ints("pad"),
                             [](int64_t pad) { return pad == 0; }) &&
         w[0] % kTensorCoreUnit == 0 && w[1] % kTensorCoreUnit == 0;
}

std::string LibraryProblem(const Node& node) {
  if (node.kind() == OpKind::kMatmul) {
    const auto shape = [&](size_t i) {
      return Numbers(node.input(i)->type().shape, "x");
    };
    const auto flag = [&](const char* name) -> int {
      return node.attrs().Bool(name);
    };
    return fmt::format("matmul a={} b={} transpose={},{}", shape(0), shape(1),
                       flag("transpose_a"), flag("transpose_b"));
  }
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

}  // namespace fusor::ir
