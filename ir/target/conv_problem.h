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
// 1, 1 group; false for library fusions. `attrs` are those of a convolution op.
bool HasWinogradGeometry(const Node& node);
bool HasWinogradGeometry(const Shape& weight, const Attrs& attrs);

// True for a convolution with at most a bias and a ReLU, no library fusion.
bool IsPlainConvolution(const Node& node);

// Returns a one-line key of what determines a library's speed besides dtypes,
// layouts and algorithm: "conv2d x=16x64x56x56 w=64x64x3x3 stride=1,1 pad=1,1
// dilation=1,1 groups=1", plus the ops of a library fusion:
// " fused=conv2d,reduce,mul,reduce". "" for other ops.
std::string ConvolutionProblem(const Node& node);

// Estimate the nanoseconds of a convolution. DirectNs: multiply-accumulates at
// the target's rate for x's dtype. WinogradNs (Lavin and Gray, "Fast Algorithms
// for Convolutional Neural Networks", CVPR 2016): multiplications at
// Target::winograd_efficiency of that rate, plus memory traffic. f32 uses
// F(4x4, 3x3): 36 multiplications per 16 results; transformed tensors, 36/16
// the size of the plain ones, pass through memory. 16 bit uses F(2x2, 3x3): 16
// multiplications per 4 results; of the transformed tensors only the weights
// pass through memory. REQUIRES: ConvolutionOf(node) has a value, and for
// WinogradNs HasWinogradGeometry(node).
int64_t DirectNs(const Node& node, const Target& target);
int64_t WinogradNs(const Node& node, const Target& target);

}  // namespace fusor::ir
