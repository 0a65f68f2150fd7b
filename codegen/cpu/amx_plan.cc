#include "codegen/cpu/amx_plan.h"

#include <omp.h>

#include <algorithm>

#include "codegen/cpu/onednn_layout.h"
#include "codegen/cpu/winograd_plan.h"
#include "ir/target/cost.h"

namespace fusor::cpu {
namespace {

using ir::ConvKind;
using ir::Convolution;
using ir::DType;
using ir::Layout;
using ir::TensorType;

// Bytes of tiles that a core's second-level cache holds.
constexpr int64_t kCacheBytes = int64_t{1} << 20;
// The least number of tiles that are added to sums before these are stored.
constexpr int64_t kFewestSteps = 8;
// Channels per group: with fewer, GroupedPlan is faster.
constexpr int64_t kFewestPerGroup = 4;
constexpr int64_t kLine = 64;
constexpr int64_t kHalf = 2;  // bytes of bf16

// Returns how many groups to join: as many as fill two tiles if one group does
// not fill half of them; 0 if groups are too different from a tile.
int64_t JoinedGroups(const Convolution& conv, int64_t groups) {
  const int64_t in = conv.x.shape[1] / groups;
  const int64_t out = conv.y.shape[1] / groups;
  if (groups == 1 || std::min(in, out) >= kAmxRows) return 1;
  if (std::min(in, out) < kFewestPerGroup || std::max(in, out) > kAmxRows) {
    return 0;
  }
  return std::min(2 * kAmxRows / std::max(in, out), groups);
}

// A 1x1 filter is a matrix in any layout. im2col multiplies it without planes.
bool AmxApplies(const Convolution& conv, const ir::Attrs& attrs,
                size_t operands) {
  const DType weight = conv.weight.dtype;
  const int64_t groups = attrs.Int("groups");
  if (conv.x.dtype != DType::kBF16 || conv.y.dtype != DType::kBF16 ||
      conv.weight.shape[2] * conv.weight.shape[3] == 1 ||
      JoinedGroups(conv, groups) == 0) {
    return false;
  }
  switch (conv.kind) {
    case ConvKind::kForward:
      return groups > 1 && weight == DType::kBF16 && operands == 2;
    case ConvKind::kGradInput:
      return weight == DType::kBF16;
    case ConvKind::kGradWeight:
      return HasOwnCalls(weight);
  }
  return false;
}

// Returns the convolution whose channels are also the columns of the filter.
// Its pixels are those of the result.
Convolution Merged(Convolution conv, ir::Attrs& attrs) {
  const int64_t columns = conv.weight.shape[3];
  conv.x.shape[1] *= columns;
  conv.x.shape[3] = conv.y.shape[3];
  conv.weight.shape[1] *= columns;
  conv.weight.shape[3] = 1;
  attrs.Set("stride", std::vector<int64_t>{attrs.Ints("stride")[0], 1});
  attrs.Set("pad", std::vector<int64_t>{attrs.Ints("pad")[0], 0});
  attrs.Set("dilation", std::vector<int64_t>{attrs.Ints("dilation")[0], 1});
  return conv;
}

void DivideWork(AmxConvPlan& plan) {
  const int64_t threads = omp_get_max_threads();
  // A part has whole groups, or of a single one some pairs of blocks.
  const int64_t pairs =
      plan.groups > 1 ? plan.groups : CeilDiv(plan.target_blocks(), 2);
  plan.image_parts = std::min(threads, plan.batch);
  plan.channel_parts = plan.together = 1;
  plan.chunk = plan.steps();
  if (!plan.of_weight()) {
    plan.channel_parts = std::min(CeilDiv(threads, plan.batch), pairs);
    return;
  }
  // Parts of the images have sums of their own, parts of the channels copy all
  // images.
  const bool by_channels =
      plan.batch < threads ||
      plan.weights_bytes() / plan.image_parts >
          plan.batch * plan.groups * plan.source_tiles_bytes();
  if (by_channels) {
    plan.image_parts = 1;
    plan.channel_parts = std::min(threads, pairs);
  }
  // Two blocks of the source at a time.
  const int64_t image_bytes =
      plan.target_tiles_bytes() +
      CeilDiv(2 * plan.source_tiles_bytes(), plan.source_blocks());
  plan.together = std::clamp<int64_t>(kCacheBytes / image_bytes, 1,
                                      CeilDiv(plan.batch, plan.image_parts));
  if (plan.together == 1) {
    plan.chunk = std::min(
        std::max(kCacheBytes * plan.steps() / image_bytes, kFewestSteps),
        plan.steps());
  }
}

AmxConvPlan MakePlan(const Convolution& conv, const ir::Attrs& attrs) {
  const auto& [kind, x, weight, y] = conv;
  const int64_t groups = attrs.Int("groups");
  const int64_t joined = JoinedGroups(conv, groups);
  AmxConvPlan plan{.kind = kind,
                   .batch = x.shape[0],
                   .groups = CeilDiv(groups, joined),
                   .joined_groups = joined,
                   .all_in_channels = x.shape[1],
                   .all_out_channels = y.shape[1],
                   .in_channels = joined * (x.shape[1] / groups),
                   .in_height = x.shape[2],
                   .in_width = x.shape[3],
                   .out_channels = joined * (y.shape[1] / groups),
                   .out_height = y.shape[2],
                   .out_width = y.shape[3],
                   .kernel_height = weight.shape[2],
                   .kernel_width = weight.shape[3],
                   .column_stride = attrs.Ints("stride")[1],
                   .left_pad = attrs.Ints("pad")[1],
                   .weight_is_bf16 = weight.dtype == DType::kBF16};
  plan.merged = plan.of_weight() && groups == 1 && plan.kernel_width > 1 &&
                attrs.Ints("dilation")[1] == 1 &&
                plan.in_channels * plan.kernel_width <= 2 * kAmxRows;
  if (plan.merged) {
    ir::Attrs changed = attrs;
    const Convolution merged = Merged(conv, changed);
    plan.geometry = PlanConvPlanes(merged, changed);
  } else {
    plan.geometry = PlanConvPlanes(conv, attrs);
  }
  DivideWork(plan);
  return plan;
}

}  // namespace

int64_t AmxConvPlan::source_blocks() const {
  // All but weight gradients sum over these channels.
  return CeilDiv(plane_channels(), of_weight() ? kAmxRows : kAmxDepth);
}

int64_t AmxConvPlan::target_blocks() const {
  return CeilDiv(of_input() ? in_channels : out_channels, kAmxRows);
}

int64_t AmxConvPlan::part_blocks() const {
  const int64_t pairs = CeilDiv(target_blocks(), 2);
  return 2 * (groups > 1 ? pairs : CeilDiv(pairs, channel_parts));
}

int64_t AmxConvPlan::span() const {
  const int64_t rows =
      CeilDiv(of_input() ? in_height : out_height, geometry.target_phases[0]);
  const int64_t columns =
      CeilDiv(of_input() ? in_width : out_width, geometry.target_phases[1]);
  return (rows - 1) * geometry.pitch + columns;
}

int64_t AmxConvPlan::pixels() const {
  return RoundUp(geometry.lead + geometry.reach +
                     std::max(geometry.image, steps() * kAmxDepth) + 1,
                 2);
}

int64_t AmxConvPlan::planes_bytes() const {
  const int64_t channels =
      source_blocks() * (of_weight() ? kAmxRows : kAmxDepth);
  return RoundUp(phases() * pixels() * channels * kHalf, kLine);
}

int64_t AmxConvPlan::target_bytes() const {
  return of_weight() ? steps() * kAmxDepth * part_blocks() * kAmxRows * kHalf
                     : 0;
}

int64_t AmxConvPlan::source_tiles_bytes() const {
  return of_weight() ? together * 2 * phases() * source_blocks() * pixels() *
                           kAmxRows * kHalf
                     : 0;
}

int64_t AmxConvPlan::target_tiles_bytes() const {
  return of_weight() ? together * steps() * part_blocks() * kAmxTile * kHalf
                     : 0;
}

int64_t AmxConvPlan::part_bytes() const {
  return planes_bytes() + target_bytes() + source_tiles_bytes() +
         target_tiles_bytes();
}

int64_t AmxConvPlan::weights_bytes() const {
  if (!of_weight()) {
    return groups * target_blocks() * source_blocks() * taps() * kAmxTile *
           kHalf;
  }
  return is_complete()
             ? 0
             : image_parts * groups * taps() * RoundUp(target_blocks(), 2) *
                   RoundUp(source_blocks(), 2) * kAmxSums *
                   static_cast<int64_t>(sizeof(float));
}

int64_t AmxConvPlan::joined_bytes() const {
  if (joined_groups == 1 || of_weight()) return 0;
  return RoundUp(groups * out_channels * taps() * in_channels * kHalf, kLine);
}

int64_t AmxConvPlan::workspace_bytes() const {
  return weights_bytes() + parts() * part_bytes() + joined_bytes();
}

std::optional<ir::LibraryCandidate> AmxConvCandidate(const ir::Node& node,
                                                     const ir::Target& target) {
  const auto conv = ir::ConvolutionOf(node);
  if (!conv.has_value() || !target.amx ||
      !AmxApplies(*conv, node.attrs(), node.num_inputs())) {
    return std::nullopt;
  }
  const AmxConvPlan plan = MakePlan(*conv, node.attrs());
  ir::LibraryCandidate c;
  c.name = c.algorithm = kAmx;
  c.implementation = plan.implementation();
  c.workspace_bytes = plan.workspace_bytes();
  c.modelled_ns = ir::DirectNs(node, target);
  c.operands = {ChannelsLast(), ChannelsLast()};
  c.results = {ChannelsLast()};
  return c;
}

std::optional<AmxConvPlan> PlanAmxConv(const codegen::LibraryCall& call) {
  const auto found = ConvolutionBy(call, kAmx);
  if (!found.has_value()) return std::nullopt;
  const Convolution& conv = *found;
  for (const TensorType* type : {&conv.x, &conv.weight, &conv.y}) {
    if (type->layout != ChannelsLast()) return std::nullopt;
  }
  if (!AmxApplies(conv, call.attrs, call.operands.size())) return std::nullopt;
  return MakePlan(conv, call.attrs);
}

}  // namespace fusor::cpu
