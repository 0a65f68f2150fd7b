#include "codegen/cpu/wide_winograd_plan.h"

#include <omp.h>

#include <algorithm>
#include <utility>

#include "codegen/cpu/host.h"
#include "codegen/cpu/winograd_plan.h"
#include "ir/target/cost.h"

namespace fusor::cpu {
namespace {

using ir::ConvKind;
using ir::Convolution;
using ir::DType;
using ir::Layout;

// Size of a weight's gradient from which channels are divided, not tiles: each
// range of tiles has its own sums.
constexpr int64_t kManySums = 256 * 128;

// The convolution and both gradients use the same layout of the weight, so it
// is packed once.
struct BlockedLayouts {
  Layout activation, weight;

  BlockedLayouts(const char* activation_text, const char* weight_text)
      : activation(ir::Canonical(ir::ParseLayout(activation_text))),
        weight(ir::Canonical(ir::ParseLayout(weight_text))) {}
};

const BlockedLayouts& LayoutsOf(int64_t lanes) {
  static const auto& eight = *new BlockedLayouts("aBcd8b", "ABcd8b8a");
  static const auto& sixteen = *new BlockedLayouts("aBcd16b", "ABcd16b16a");
  return lanes == 16 ? sixteen : eight;
}

// Returns the lanes of this machine's widest vectors; 0 if they are too narrow.
int64_t MostLanes() {
  switch (WidestIsa()) {
    case VectorIsa::kAvx512:
      return 16;
    case VectorIsa::kAvx2:
      return 8;
    default:
      return 0;
  }
}

bool AppliesInF32(const Convolution& conv, const ir::Attrs& attrs,
                  int64_t lanes) {
  const auto is_f32 = [](const ir::TensorType& type) {
    return type.dtype == DType::kF32;
  };
  const auto& pad = attrs.Ints("pad");
  const bool relu = conv.kind == ConvKind::kForward && attrs.Bool("relu");
  // oneDNN's weight gradient with AVX-512 is faster.
  const bool gradient = conv.kind == ConvKind::kGradWeight;
  return lanes <= MostLanes() && !(gradient && lanes == 16) && !relu &&
         ir::HasWinogradGeometry(conv.weight.shape, attrs) && is_f32(conv.x) &&
         is_f32(conv.weight) && is_f32(conv.y) &&
         conv.x.shape[1] % lanes == 0 && conv.y.shape[1] % lanes == 0 &&
         std::max(pad[0], pad[1]) <= 2;
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
  return divides && channels >= 2 * plan.group_channels() * threads ? threads
                                                                    : 1;
}

// Returns whether a part loops over points first and then over its groups of
// channels, instead of the other way round. Then one point's input stays in a
// cache for all groups, but the products of all groups are stored and loaded.
bool AllGroupsTogether(const WideWinogradPlan& plan) {
  return plan.lanes == 16 && !HasFewTiles(plan);
}

// Returns the tiles per block, in blocks of about equal size. The transformed
// input of a convolution fits the L2 cache, unless too few rows would amortise
// loading the weights. Those of a weight gradient amortise loading its sums.
int64_t BlockOf(const WideWinogradPlan& plan) {
  const int64_t most =
      plan.kind == ConvKind::kGradWeight || HasFewTiles(plan) ? 96
      : AllGroupsTogether(plan)
          ? 48
          : std::clamp<int64_t>(2304 / plan.in_channels, 18, 48);
  const int64_t share = CeilDiv(plan.tiles(), plan.tile_parts);
  const int64_t blocks = CeilDiv(share, most);
  const int64_t rows = plan.lanes == 16 ? 12 : 6;  // multiplied together
  return CeilDiv(CeilDiv(share, blocks), rows) * rows;
}

WideWinogradPlan Plan(const Convolution& conv, const ir::Attrs& attrs,
                      int64_t lanes, bool bias) {
  WideWinogradPlan plan{WinogradGeometryOf(conv, attrs)};
  plan.kind = conv.kind;
  plan.lanes = lanes;
  plan.bias = bias;
  const int64_t threads = omp_get_max_threads();
  plan.channel_parts = ChannelParts(plan, threads);
  plan.tile_parts = threads / plan.channel_parts;
  plan.block = BlockOf(plan);
  if (conv.kind == ConvKind::kGradWeight) {
    plan.v_row = CeilDiv(plan.in_blocks(), plan.channel_parts) * lanes;
    plan.m_stride = plan.block * plan.out_channels;
  } else {
    plan.v_row = plan.in_channels;
    plan.groups_together = AllGroupsTogether(plan)
                               ? CeilDiv(plan.out_groups(), plan.channel_parts)
                               : 1;
    plan.m_stride = plan.block * plan.groups_together * plan.group_channels();
  }
  plan.v_row += kWidePad;
  plan.v_stride = plan.block * plan.v_row + kWidePad;
  plan.m_stride += kWidePad;
  return plan;
}

}  // namespace

std::optional<ir::LibraryCandidate> WideWinogradCandidate(
    const ir::Node& node, const ir::Target& target) {
  const auto conv = ir::ConvolutionOf(node);
  const int64_t lanes = target.channel_block();
  if (!conv.has_value() || target.winograd_efficiency == 0 ||
      (lanes != 8 && lanes != 16) ||
      !AppliesInF32(*conv, node.attrs(), lanes)) {
    return std::nullopt;
  }
  const bool bias = conv->kind == ConvKind::kForward && node.num_inputs() == 3;
  if (bias && node.input(2)->type().dtype != DType::kF32) return std::nullopt;
  ir::LibraryCandidate c;
  c.name = c.algorithm = "winograd";
  const WideWinogradPlan plan = Plan(*conv, node.attrs(), lanes, bias);
  c.implementation = plan.implementation();
  c.workspace_bytes = plan.workspace_bytes();
  c.modelled_ns = ir::WinogradNs(node, target);
  const auto& [activation, weight] = LayoutsOf(lanes);
  if (conv->kind == ConvKind::kGradWeight) {
    c.operands = {activation, activation};
    c.results = {weight};
  } else {
    c.operands = {activation, weight};
    if (bias) c.operands.emplace_back();
    c.results = {activation};
  }
  return c;
}

std::optional<WideWinogradPlan> PlanWideWinograd(
    const codegen::LibraryCall& call) {
  const auto found = ConvolutionBy(call, "winograd");
  if (!found.has_value()) return std::nullopt;
  const Convolution& conv = *found;
  const bool bias = call.operands.size() == 3;
  for (const int64_t lanes : {8, 16}) {
    const auto& [activation, weight] = LayoutsOf(lanes);
    if (AppliesInF32(conv, call.attrs, lanes) && conv.x.layout == activation &&
        conv.weight.layout == weight && conv.y.layout == activation &&
        (!bias || call.operands[2].dtype == DType::kF32)) {
      return Plan(conv, call.attrs, lanes, bias);
    }
  }
  return std::nullopt;
}

}  // namespace fusor::cpu
