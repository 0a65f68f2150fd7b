#include "ir/target/cost.h"

#include <algorithm>
#include <unordered_set>

#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/target/conv_problem.h"

namespace fusor::ir {
namespace {

// F(tile x tile, 3x3).
struct Winograd {
  int64_t tile;
  int64_t points;        // multiplications per tile and channel pair
  int64_t element_size;  // bytes
  bool fused;            // transformed activations stay in a cache
};

// GPUs copy 4, 8 or 16 bytes to shared memory asynchronously; threads wait for
// narrower loads. A multiprocessor issues 32 loads per clock, while it executes
// up to 256 f32 operations.
constexpr int64_t kAsyncBytes = 4;
constexpr int64_t kWidestBytes = 16;
constexpr double kFlopsPerLoad = 8;

// Returns the number of elements of x that an implicit matmul loads: the window
// at each position of y, in all channels.
double WindowElements(const Convolution& conv) {
  const Shape& y = conv.y.shape;
  const Shape& w = conv.weight.shape;
  return static_cast<double>(y[0] * y[2] * y[3]) *
         static_cast<double>(w[1] * w[2] * w[3]);
}

Winograd WinogradOf(DType dtype) {
  return dtype == DType::kF32 ? Winograd{4, 36, 4, false}
                              : Winograd{2, 16, 2, true};
}

// Returns the tiles that cover the last two dimensions.
int64_t Tiles(const Shape& shape, int64_t tile) {
  return (shape[2] + tile - 1) / tile * ((shape[3] + tile - 1) / tile);
}

}  // namespace

int64_t NodeMacs(const Node& node) {
  if (node.body() != nullptr) return GraphMacs(*node.body());
  return node.op().macs == nullptr ? 0 : node.op().macs(node);
}

int64_t GraphMacs(const Graph& graph) {
  int64_t macs = 0;
  for (const auto& node : graph.nodes()) macs += NodeMacs(*node);
  return macs;
}

int64_t KernelBytes(const TensorType& type) {
  return type.dtype == DType::kBool ? PackedBytes(type.num_elements())
                                    : type.num_bytes();
}

int64_t NodeBytes(const Node& node) {
  std::unordered_set<const Value*> values(node.inputs().begin(),
                                          node.inputs().end());
  for (size_t i = 0; i < node.num_outputs(); ++i) values.insert(node.output(i));
  int64_t bytes = 0;
  for (const Value* value : values) bytes += KernelBytes(value->type());
  return bytes;
}

int64_t KernelNs(int64_t bytes, const Target& target) {
  const double bandwidth = std::max(target.memory_gb_per_s, 1.0);
  return static_cast<int64_t>(static_cast<double>(bytes) / bandwidth) +
         target.launch_overhead_ns;
}

int64_t NodeFlops(const Node& node) {
  if (IsLibraryFusion(node)) return NodeFlops(LibraryOp(node));
  if (node.body() != nullptr) {
    int64_t flops = 0;
    for (const auto& inner : node.body()->nodes()) flops += NodeFlops(*inner);
    return flops;
  }
  switch (node.op().fusion) {
    case FusionKind::kElementwise:
      return node.output()->type().num_elements();
    case FusionKind::kReduce:
      return node.input(0)->type().num_elements();
    case FusionKind::kSeparate: {
      int64_t elements = 0;
      for (const Value* input : node.inputs()) {
        elements += input->type().num_elements();
      }
      return elements;
    }
    case FusionKind::kLibrary: {
      const int64_t macs = NodeMacs(node);
      return macs > 0 ? 2 * macs : node.input(0)->type().num_elements();
    }
    default:
      return 0;
  }
}

int64_t DirectNs(const Node& node, const Target& target) {
  const bool wide = LibraryOp(node).input(0)->type().dtype == DType::kF32;
  const double peak = wide ? target.peak_gflops_f32 : target.peak_gflops_16;
  return static_cast<int64_t>(2.0 * static_cast<double>(NodeMacs(node)) / peak);
}

int64_t WinogradNs(const Node& node, const Target& target) {
  FUSOR_ASSERT(HasWinogradGeometry(node), "{}", node.op_name());
  return WinogradNs(*ConvolutionOf(node), target);
}

int64_t WinogradNs(const Convolution& conv, const Target& target) {
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
  // fusor's own Winograd in bf16 does not use AMX. Without it, products in bf16
  // are no faster than in f32 on CPUs with AMX.
  const double peak = conv.x.dtype == DType::kF32 || target.amx
                          ? target.peak_gflops_f32
                          : target.peak_gflops_16;
  return static_cast<int64_t>(2 * multiplications /
                                  (peak * target.winograd_efficiency) +
                              bytes / std::max(target.memory_gb_per_s, 1.0));
}

ConvolutionExcess ExcessOf(const Convolution& conv, int64_t workspace_bytes,
                           const Target& target) {
  ConvolutionExcess excess{.bytes = 2 * workspace_bytes};
  if (conv.kind == ConvKind::kGradInput) return excess;
  const auto element = static_cast<int64_t>(DTypeSize(conv.x.dtype));
  const int64_t pixel = conv.x.shape[1] * element;
  const int64_t padded =
      (pixel + kWidestBytes - 1) / kWidestBytes * kWidestBytes;
  if (padded > pixel &&
      workspace_bytes >= conv.x.num_bytes() / pixel * padded) {
    excess.macs = static_cast<double>(padded) / static_cast<double>(pixel);
    return excess;
  }
  // Channels-last: a load is at most the largest power of two in a pixel.
  const int64_t widest = pixel & -pixel;
  if (widest < kAsyncBytes) {
    excess.load_ns = WindowElements(conv) * static_cast<double>(element) /
                     static_cast<double>(widest) * kFlopsPerLoad /
                     std::max(target.peak_gflops_f32, 1.0);
  }
  return excess;
}

bool TakesTime(const Node& node) {
  return node.body() != nullptr || node.op().fusion == FusionKind::kLibrary;
}

double NodeSeconds(const Node& node, const Target& target) {
  if (!TakesTime(node)) return 0;
  if (node.HasTrait(OpTrait::kConvolution) &&
      node.attrs().String("algorithm") == "winograd") {
    return 1e-9 * static_cast<double>(WinogradNs(node, target));
  }
  const auto memory = static_cast<double>(KernelNs(NodeBytes(node), target));
  const bool narrow =
      node.num_inputs() > 0 && DTypeSize(node.input(0)->type().dtype) == 2;
  const double peak = narrow ? target.peak_gflops_16 : target.peak_gflops_f32;
  const double arithmetic =
      2 * static_cast<double>(NodeMacs(node)) / std::max(peak, 1.0);
  return 1e-9 * std::max(memory, arithmetic);
}

}  // namespace fusor::ir
