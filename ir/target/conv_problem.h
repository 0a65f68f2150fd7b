#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ir/graph.h"
#include "ir/target/target.h"

namespace fusor::ir {

enum class ConvKind { kForward, kGradInput, kGradWeight };

// The tensors of a conv2d, conv2d_grad_input or conv2d_grad_weight, whichever
// of them is the result: x [N,C,H,W], weight [O,C/groups,KH,KW], y [N,O,OH,OW].
struct Convolution {
  ConvKind kind = ConvKind::kForward;
  TensorType x, weight, y;
};

// Returns the tensors for these three ops and for library fusions of one of
// them, nullopt for others.
std::optional<Convolution> ConvolutionOf(const Node& node);

// True if Winograd's algorithm applies to the geometry: 3x3, stride 1, dilation
// 1, equal padding of opposite sides; false for library fusions.
// `attrs` are those of a convolution op.
bool HasWinogradGeometry(const Node& node);
bool HasWinogradGeometry(const Shape& weight, const Attrs& attrs);

// True for a convolution with at most a bias, no library fusion.
bool IsPlainConvolution(const Node& node);

// True for a convolution, or a gradient of one, with one filter per channel
// that reads only that channel, without dilation.
bool IsDepthwise(const Node& node);
// True for a depthwise data gradient whose filters move by more than a pixel.
bool IsStridedDepthwiseGradient(const Node& node);

// Rows and columns of the tiles of a matrix product in a generated kernel for
// tensor cores, codegen::LowerTensorCore: 128, or 64 where such tiles extend
// less beyond the product. Without wgmma, always 64 columns.
int64_t TensorCoreTileRows(int64_t rows);
int64_t TensorCoreTileColumns(int64_t columns, const Target& target);
// Divides the rows of operands for which it loads 16 bytes at once, e.g. the
// channels of convolutions.
inline constexpr int64_t kTensorCoreUnit = 8;
// True for a matmul, and for a 1x1 convolution with stride 1, or a gradient of
// one, which is such a product: of channels and of all images' pixels. Operands
// are 16-bit floats. Also for a library fusion of such a convolution that does
// not return an operand of it.
bool FitsTensorCores(const Node& node);

// Returns a one-line key of what determines a library's speed besides dtypes,
// layouts and algorithm: "conv2d x=16x64x56x56 w=64x64x3x3 stride=1,1 pad=1,1
// dilation=1,1 groups=1", plus the ops of a library fusion:
// " fused=conv2d,reduce,mul,reduce". "matmul a=64x256 b=128x256 transpose=0,1"
// for a matmul. "" for other ops, and for library fusions of matmuls.
std::string LibraryProblem(const Node& node);

}  // namespace fusor::ir
