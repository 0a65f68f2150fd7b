#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ir/graph.h"
#include "ir/target/target.h"

namespace fusor::ir {

enum class ConvKind { kForward, kGradInput, kGradWeight };

// The tensors of the convolution behind conv2d, conv2d_grad_input and
// conv2d_grad_weight, whichever of them is the result: x [N,C,H,W], weight
// [O,C/groups,KH,KW], y [N,O,OH,OW].
struct Convolution {
  ConvKind kind = ConvKind::kForward;
  TensorType x, weight, y;
};

// Of these three ops; nullopt for others.
std::optional<Convolution> ConvolutionOf(const Node& node);

// Whether Winograd's algorithms apply to its geometry: 3x3, stride 1, no
// dilation, no groups. `attrs`: of such an op.
bool HasWinogradGeometry(const Node& node);
bool HasWinogradGeometry(const Shape& weight, const Attrs& attrs);

// Whether it is one of these and computes nothing but the convolution, with a
// bias and a ReLU at most: no statistics, no normalisation, no sum.
bool IsPlainConvolution(const Node& node);

// What a library's speed at a convolution depends on besides dtypes, layouts
// and algorithm, as a line: "conv2d x=16x64x56x56 w=64x64x3x3 stride=1,1
// pad=1,1 dilation=1,1 groups=1", with what it computes beside the convolution
// at the end: " norm=join add". Empty for other ops.
std::string ConvolutionProblem(const Node& node);

// Modelled time of a convolution. Directly: its multiply-accumulates at the
// target's rate for x's dtype. By Winograd (Lavin and Gray, "Fast Algorithms
// for Convolutional Neural Networks", CVPR 2016), at the share of that rate
// that Target::winograd_efficiency says: in f32 F(4x4, 3x3), 36 multiplications
// for 16 results, and the transformed tensors, 36/16 of the plain ones, through
// memory; in 16 bit F(2x2, 3x3), 16 multiplications for 4 results, transformed
// weights alone through memory. REQUIRES: ConvolutionOf(node), for Winograd
// HasWinogradGeometry(node).
int64_t DirectNs(const Node& node, const Target& target);
int64_t WinogradNs(const Node& node, const Target& target);

}  // namespace fusor::ir
