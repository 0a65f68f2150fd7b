#include "codegen/cpu/wide_winograd_plan.h"

#include <omp.h>

#include <algorithm>
#include <utility>

#include "codegen/cpu/vector_isa.h"
#include "codegen/cpu/winograd_plan.h"
#include "ir/target/cost.h"

namespace fusor::cpu {
namespace {

using ir::ConvKind;
using ir::Convolution;
using ir::DType;
using ir::Layout;

// Tiles that are multiplied together.
constexpr int64_t kRows = 6;
// Size of a weight's gradient from which channels are divided, not tiles: each
// range of tiles has its own sums.
constexpr int64_t kManySums = 256 * 128;

const Layout& BlockedActivation() {
  static const auto& layout =
      *new Layout(ir::Canonical(ir::ParseLayout("aBcd8b")));
  return layout;
}

// The convolution and both gradients use this layout, so a weight is packed
// once.
const Layout& BlockedWeight() {
  static const auto& layout =
      *new Layout(ir::Canonical(ir::ParseLayout("ABcd8b8a")));
  return layout;
}

bool AppliesInF32(const Convolution& conv, const ir::Attrs& attrs) {
  const auto is_f32 = [](const ir::TensorType& type) {
    return type.dtype == DType::kF32;
  };
  const auto& pad = attrs.Ints("pad");
  const bool relu = conv.kind == ConvKind::kForward && attrs.Bool("relu");
  return WidestIsa() != VectorIsa::kPlain && !relu &&
         ir::HasWinogradGeometry(conv.weight.shape, attrs) && is_f32(conv.x) &&
         is_f32(conv.weight) && is_f32(conv.y) &&
         conv.x.shape[1] % kWideBlock == 0 &&
         conv.y.shape[1] % kWideBlock == 0 && std::max(pad[0], pad[1]) <= 2;
}

// Returns whether a block has all tiles: transforming the weights and loading
// them takes most of the time.
bool HasFewTiles(const WideWinogradPlan& plan) { return plan.tiles() <= 64; }

// Returns how many parts have channels of their own. Parts with the same tiles
// repeat transforms.
int64_t ChannelParts(const WideWinogradPlan& plan, int64_t threads) {
  const bool gradient = plan.kind == ConvKind::kGradWeight;
  const int64_t channels = gradient ? plan.in_channels : plan.out_channels;
  const bool divides = gradient
                           ? plan.in_channels * plan.out_channels >= kManySums
                           : HasFewTiles(plan);
  return divides && channels >= 2 * kWideGroup * threads ? threads : 1;
}

// Returns the tiles per block, in blocks of about equal size. The transformed
// input of a convolution fits the L2 cache, unless too few rows would amortise
// loading the weights. Those of a weight gradient amortise loading its sums.
int64_t BlockOf(const WideWinogradPlan& plan) {
  const int64_t most =
      plan.kind == ConvKind::kGradWeight || HasFewTiles(plan)
          ? 96
          : std::clamp<int64_t>(2304 / plan.in_channels, 18, 48);
  const int64_t share = CeilDiv(plan.tiles(), plan.tile_parts);
  const int64_t blocks = CeilDiv(share, most);
  return CeilDiv(CeilDiv(share, blocks), kRows) * kRows;
}

WideWinogradPlan Plan(const Convolution& conv, const ir::Attrs& attrs,
                      bool bias) {
  WideWinogradPlan plan{WinogradGeometryOf(conv, attrs)};
  plan.kind = conv.kind;
  plan.bias = bias;
  const int64_t threads = omp_get_max_threads();
  plan.channel_parts = ChannelParts(plan, threads);
  plan.tile_parts = threads / plan.channel_parts;
  plan.block = BlockOf(plan);
  if (conv.kind == ConvKind::kGradWeight) {
    plan.v_stride =
        plan.block * CeilDiv(plan.in_blocks(), plan.channel_parts) * kWideBlock;
    plan.m_stride = plan.block * plan.out_channels;
  } else {
    plan.v_stride = plan.block * plan.in_channels;
    plan.m_stride = plan.block * kWideGroup;
  }
  plan.v_stride += kWidePad;
  plan.m_stride += kWidePad;
  return plan;
}

}  // namespace

std::optional<ir::LibraryCandidate> WideWinogradCandidate(
    const ir::Node& node, const ir::Target& target) {
  const auto conv = ir::ConvolutionOf(node);
  if (!conv.has_value() || target.winograd_efficiency == 0 ||
      target.channel_block() != kWideBlock ||
      !AppliesInF32(*conv, node.attrs())) {
    return std::nullopt;
  }
  const bool bias = conv->kind == ConvKind::kForward && node.num_inputs() == 3;
  if (bias && node.input(2)->type().dtype != DType::kF32) return std::nullopt;
  ir::LibraryCandidate c;
  c.name = c.algorithm = "winograd";
  c.implementation = kWideWinogradImplementation;
  c.workspace_bytes = Plan(*conv, node.attrs(), bias).workspace_bytes();
  c.modelled_ns = ir::WinogradNs(node, target);
  const Layout& activation = BlockedActivation();
  if (conv->kind == ConvKind::kGradWeight) {
    c.operands = {activation, activation};
    c.results = {BlockedWeight()};
  } else {
    c.operands = {activation, BlockedWeight()};
    if (bias) c.operands.emplace_back();
    c.results = {activation};
  }
  return c;
}

std::optional<WideWinogradPlan> PlanWideWinograd(
    const codegen::LibraryCall& call) {
  if (!call.HasTrait(ir::OpTrait::kConvolution) ||
      call.attrs.String("algorithm") != "winograd") {
    return std::nullopt;
  }
  const Convolution conv = ConvolutionOf(call);
  const bool bias = call.operands.size() == 3;
  if (!AppliesInF32(conv, call.attrs) || conv.x.layout != BlockedActivation() ||
      conv.weight.layout != BlockedWeight() ||
      conv.y.layout != BlockedActivation() ||
      (bias && call.operands[2].dtype != DType::kF32)) {
    return std::nullopt;
  }
  return Plan(conv, call.attrs, bias);
}

}  // namespace fusor::cpu
