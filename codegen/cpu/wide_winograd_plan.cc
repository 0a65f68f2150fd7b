#include "codegen/cpu/wide_winograd_plan.h"

#include <omp.h>

#include <algorithm>
#include <utility>

#include "codegen/cpu/host.h"
#include "codegen/cpu/onednn_layout.h"
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
constexpr int64_t kLeastChunk = 8;  // channels
// Tasks per part of the work that make parts of about equal duration.
constexpr int64_t kTasksPerPart = 8;

// Returns a chunk of channels (WideWinogradPlan).
int64_t ChunkOf(const Convolution& conv, int64_t groups, int64_t lanes) {
  const int64_t in = conv.weight.shape[1];
  const int64_t out = conv.weight.shape[0] / groups;
  return in % lanes == 0 && out % lanes == 0 ? lanes : kLeastChunk;
}

// The convolution and both gradients use the same layout of the weight, so it
// is packed once.
Layout WeightLayout(int64_t chunk) {
  return {{0, 1, 2, 3}, {{1, chunk}, {0, chunk}}};
}

// Returns whether x and y can have channels in blocks of `lanes`.
bool CanBeBlocked(const Convolution& conv, int64_t lanes) {
  return conv.x.shape[1] % lanes == 0 && conv.y.shape[1] % lanes == 0;
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
  const int64_t groups = attrs.Int("groups");
  const int64_t in = conv.weight.shape[1], out = conv.weight.shape[0] / groups;
  // oneDNN's Winograd gradient with AVX-512 is faster.
  const bool is_slower = conv.kind == ConvKind::kGradWeight && lanes == 16 &&
                         groups == 1 && in % 16 == 0 && out % 16 == 0;
  return lanes <= MostLanes() && !is_slower &&
         ir::HasWinogradGeometry(conv.weight.shape, attrs) && is_f32(conv.x) &&
         is_f32(conv.weight) && is_f32(conv.y) && in % kLeastChunk == 0 &&
         out % kLeastChunk == 0 && std::max(pad[0], pad[1]) <= 2;
}

// Returns whether there are so few tiles that most of the time goes into
// transforming the weights and loading them.
bool HasFewTiles(const WideWinogradPlan& plan) { return plan.tiles() <= 64; }

// Returns how many parts have channels of their own. Parts with the same tiles
// repeat transforms.
int64_t ChannelParts(const WideWinogradPlan& plan, int64_t threads) {
  const bool gradient = plan.kind == ConvKind::kGradWeight;
  const int64_t channels = gradient ? plan.in_channels : plan.out_channels;
  const bool divides = gradient
                           ? plan.in_channels * plan.out_channels >= kManySums
                           : HasFewTiles(plan) && plan.groups == 1;
  return divides && channels >= 2 * plan.panel_channels() * threads ? threads
                                                                    : 1;
}

// Returns whether a part loops over points first and then over its panels,
// instead of the other way round. Then one point's input stays in a cache for
// all panels, but the products of all panels are stored and loaded.
bool AllPanelsTogether(const WideWinogradPlan& plan) {
  return plan.lanes == 16 && !HasFewTiles(plan);
}

// Sets the ranges of tiles and their size, which is about equal. The
// transformed input of a convolution fits the L2 cache, unless too few rows
// would amortise loading the weights. Those of a weight gradient amortise
// loading its sums.
void DivideTiles(WideWinogradPlan& plan) {
  const int64_t most =
      plan.kind == ConvKind::kGradWeight || HasFewTiles(plan) ? 96
      : AllPanelsTogether(plan)
          ? 48
          : std::clamp<int64_t>(2304 / plan.in_channels, 18, 48);
  const int64_t share = CeilDiv(plan.tiles(), plan.tile_parts);
  const int64_t rows = plan.lanes == 16 ? 12 : 6;  // multiplied together
  if (plan.groups == 1 || plan.kind == ConvKind::kGradWeight) {
    plan.tile_ranges = plan.tile_parts * CeilDiv(share, most);
  } else {
    plan.tile_ranges = CeilDiv(plan.tiles(), most);
    // Few tasks are divided evenly.
    if (plan.groups * plan.tile_ranges < kTasksPerPart * plan.parts() &&
        plan.groups % plan.parts() != 0) {
      plan.tile_ranges = RoundUp(plan.tile_ranges, plan.parts());
    }
  }
  plan.block = RoundUp(CeilDiv(plan.tiles(), plan.tile_ranges), rows);
}

// `blocked`: x and y are, and do not have channels last.
WideWinogradPlan Plan(const Convolution& conv, const ir::Attrs& attrs,
                      int64_t lanes, int64_t chunk, bool blocked, bool bias) {
  WideWinogradPlan plan{WinogradGeometryOf(conv, attrs)};
  plan.kind = conv.kind;
  plan.lanes = lanes;
  plan.chunk = chunk;
  plan.in_contiguous = blocked ? lanes : plan.groups * plan.in_channels;
  plan.out_contiguous = blocked ? lanes : plan.groups * plan.out_channels;
  plan.bias = bias;
  const int64_t threads = omp_get_max_threads();
  plan.channel_parts = ChannelParts(plan, threads);
  plan.tile_parts = threads / plan.channel_parts;
  DivideTiles(plan);
  if (conv.kind == ConvKind::kGradWeight) {
    plan.v_row = CeilDiv(plan.in_chunks(), plan.channel_parts) * plan.chunk;
    plan.m_stride = plan.block * plan.sum_row();
  } else {
    plan.v_row = plan.in_channels;
    plan.panels_together = AllPanelsTogether(plan)
                               ? CeilDiv(plan.out_panels(), plan.channel_parts)
                               : 1;
    plan.m_stride = plan.block * plan.panels_together * plan.panel_channels();
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
  // Where the lanes do not divide a group's channels, oneDNN's algorithms have
  // channels last. A weight gradient that is likely to have one of these has
  // the operands of the convolution.
  const int64_t chunk = ChunkOf(*conv, node.attrs().Int("groups"), lanes);
  Convolution gradient = *conv;
  gradient.kind = ConvKind::kGradWeight;
  const bool blocked = CanBeBlocked(*conv, lanes) &&
                       (chunk == lanes || ir::WinogradNs(gradient, target) <=
                                              ir::DirectNs(node, target));
  const Layout activation =
      blocked ? BlockedLayout(conv->x.shape, lanes) : ChannelsLast();
  const Layout weight = WeightLayout(chunk);
  const WideWinogradPlan plan =
      Plan(*conv, node.attrs(), lanes, chunk, blocked, bias);
  ir::LibraryCandidate c;
  c.name = c.algorithm = "winograd";
  c.implementation = plan.implementation();
  c.workspace_bytes = plan.workspace_bytes();
  c.modelled_ns = ir::WinogradNs(node, target);
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
    const int64_t chunk = ChunkOf(conv, call.attrs.Int("groups"), lanes);
    const bool blocked = CanBeBlocked(conv, lanes) &&
                         conv.x.layout == BlockedLayout(conv.x.shape, lanes);
    const bool last = lanes == 16 && conv.x.layout == ChannelsLast();
    if (AppliesInF32(conv, call.attrs, lanes) && (blocked || last) &&
        conv.y.layout == conv.x.layout &&
        conv.weight.layout == WeightLayout(chunk) &&
        (!bias || call.operands[2].dtype == DType::kF32)) {
      return Plan(conv, call.attrs, lanes, chunk, blocked, bias);
    }
  }
  return std::nullopt;
}

}  // namespace fusor::cpu
