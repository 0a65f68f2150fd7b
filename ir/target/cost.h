#pragma once

#include <cstdint>

#include "ir/graph.h"
#include "ir/target/conv_problem.h"
#include "ir/target/target.h"

namespace fusor::ir {

// Multiply-accumulates (OpDef::macs) of a node or of all nodes. A fusion has
// those of its body.
int64_t NodeMacs(const Node& node);
int64_t GraphMacs(const Graph& graph);

// Returns the bytes of a bitmask of `elements` bits.
constexpr int64_t PackedBytes(int64_t elements) { return (elements + 7) / 8; }

// Bytes of a value passed between kernels, which store bools as bitmasks.
int64_t KernelBytes(const TensorType& type);

// Returns the bytes of the node's distinct operands and results, which it moves
// at least as a kernel.
int64_t NodeBytes(const Node& node);

// Estimates the nanoseconds of a memory-bound kernel that moves `bytes` bytes.
int64_t KernelNs(int64_t bytes, const Target& target);

// Returns the arithmetic operations of a node, for profiles. A multiply-add
// counts as two. Elementwise ops count one per result element; reductions and
// library ops without multiply-adds (pooling, copies) one per operand element.
// A fusion counts the sum of its body; a library fusion counts its library op
// only. Other data movement counts none.
int64_t NodeFlops(const Node& node);

// Estimate the nanoseconds of a convolution. DirectNs: multiply-accumulates at
// the target's rate for x's dtype. WinogradNs (Lavin and Gray, "Fast Algorithms
// for Convolutional Neural Networks", CVPR 2016): multiplications at
// Target::winograd_efficiency of that rate, plus memory traffic. f32 uses
// F(4x4, 3x3): 36 multiplications per 16 results; transformed tensors, 36/16
// the size of the plain ones, pass through memory. 16 bit uses F(2x2, 3x3): 16
// multiplications per 4 results; of the transformed tensors only the weights
// pass through memory. REQUIRES: ConvolutionOf(node) has a value, and for
// WinogradNs the convolution HasWinogradGeometry.
int64_t DirectNs(const Node& node, const Target& target);
int64_t WinogradNs(const Node& node, const Target& target);
int64_t WinogradNs(const Convolution& conv, const Target& target);

// What a GPU library's convolution does besides NodeBytes and NodeMacs.
struct ConvolutionExcess {
  int64_t bytes = 0;   // of the workspace, written and read once
  double macs = 1;     // factor: x is copied with channels of zeros
  double load_ns = 0;  // loads that threads wait for
};

// Estimates it for forward convolutions and weight gradients, whose x may have
// few channels: if the workspace is large enough, the library copies x to it
// with pixels of 16 bytes; otherwise threads load whole pixels or parts of one.
ConvolutionExcess ExcessOf(const Convolution& conv, int64_t workspace_bytes,
                           const Target& target);

// True for fusions and library ops; NodeSeconds is 0 for all other nodes.
bool TakesTime(const Node& node);
// Estimates the seconds of an optimised graph's node by a roofline model.
double NodeSeconds(const Node& node, const Target& target);

}  // namespace fusor::ir
