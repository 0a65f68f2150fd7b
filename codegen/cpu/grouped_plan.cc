#include "codegen/cpu/grouped_plan.h"

#include <omp.h>

#include <algorithm>
#include <utility>

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

// Tasks per thread below which a weight gradient's images are divided, too.
constexpr int64_t kTasksPerThread = 4;
// Channels per group: with more of them, PlaneConvPlan is faster.
constexpr int64_t kMostPerGroup = 4;
// Rows that meet a row of the target.
constexpr int64_t kMostTerms = 64;
// Pixels of the target are computed in groups of this size.
constexpr int64_t kPixels = 8;

bool Applies(const Convolution& conv, const ir::Attrs& attrs) {
  const int64_t channels = conv.x.shape[1];
  const int64_t groups = attrs.Int("groups");
  const int64_t per_group = channels / groups;
  return groups > 1 && conv.y.shape[1] == channels &&
         per_group <= kMostPerGroup && kMostPerGroup % per_group == 0 &&
         conv.weight.shape[2] * per_group <= kMostTerms &&
         HasOwnCalls(conv.x.dtype) && conv.y.dtype == conv.x.dtype &&
         HasOwnCalls(conv.weight.dtype);
}

struct Layouts {
  Layout activation, weight;
};

// Returns blocked layouts if the block divides the channels, else row-major
// ones. Filters of one channel are blocked, too, as oneDNN's are.
Layouts LayoutsFor(const Convolution& conv, int64_t block) {
  const Layout blocked = BlockedLayout(conv.x.shape, block);
  if (blocked.is_row_major() || conv.weight.shape[1] > 1) return {blocked, {}};
  return {blocked, Layout{{0, 1, 2, 3}, {{0, block}}}};
}

// Sets the geometry of the ring's rows. An input gradient has the filter's
// columns in reverse order, and the source's pixels `stride` pixels apart.
void PlanRows(const Convolution& conv, GroupedPlan& plan) {
  const TensorType& source =
      plan.kind == ConvKind::kGradInput ? conv.y : conv.x;
  const TensorType& target =
      plan.kind == ConvKind::kGradInput ? conv.x : conv.y;
  const int64_t reach_down = (plan.kernel_height - 1) * plan.dilation[0];
  const int64_t reach = (plan.kernel_width - 1) * plan.dilation[1];
  plan.tap_step = plan.dilation[1];
  plan.target_width = target.shape[3];
  if (plan.kind == ConvKind::kGradInput) {
    plan.ring_rows = reach_down / plan.stride[0] + 1;
    plan.lead = std::max<int64_t>(reach - plan.pad[1], 0);
    plan.source_step = plan.stride[1];
    plan.first = plan.pad[1] - reach + plan.lead;
    plan.target_step = 1;
  } else {
    plan.ring_rows = reach_down + 1;
    plan.lead = plan.pad[1];
    plan.source_step = 1;
    plan.first = 0;
    plan.target_step = plan.stride[1];
  }
  plan.row_pixels = std::max(
      plan.lead + (source.shape[3] - 1) * plan.source_step + 1,
      plan.first +
          (RoundUp(plan.target_width, kPixels) - 1) * plan.target_step + reach +
          1);
}

// Returns the pixels of a row-major image; 0 for one pixel, whose channels are
// contiguous.
int64_t PixelsToTranspose(const TensorType& image) {
  const int64_t pixels = image.shape[2] * image.shape[3];
  return pixels > 1 ? pixels : 0;
}

// `layout`: of the activations.
GroupedPlan Plan(const Convolution& conv, const Layout& layout,
                 const ir::Attrs& attrs) {
  GroupedPlan plan{.kind = conv.kind,
                   .isa = WidestIsa(),
                   .ranges = 1,
                   .parts = omp_get_max_threads(),
                   .per_group = conv.weight.shape[1],
                   .kernel_height = conv.weight.shape[2],
                   .kernel_width = conv.weight.shape[3],
                   .stride = attrs.Ints("stride"),
                   .pad = attrs.Ints("pad"),
                   .dilation = attrs.Ints("dilation")};
  const std::vector<Layout::Tile>& tiles = layout.tiles;
  plan.lanes = !tiles.empty()                   ? tiles[0].size
               : plan.isa == VectorIsa::kAvx512 ? 16
                                                : 8;
  plan.blocks = (conv.x.shape[1] + plan.lanes - 1) / plan.lanes;
  if (conv.kind == ConvKind::kGradWeight) {
    plan.ranges = std::min(conv.x.shape[0],
                           kTasksPerThread * plan.parts / plan.blocks + 1);
  }
  PlanRows(conv, plan);
  if (layout.is_row_major()) {
    plan.source_pixels = PixelsToTranspose(conv.x);
    plan.target_pixels = PixelsToTranspose(conv.y);
    if (conv.kind == ConvKind::kGradInput) {
      std::swap(plan.source_pixels, plan.target_pixels);
    }
  }
  return plan;
}

}  // namespace

bool WantsChannelsLast(const ir::Node& node, const ir::Target& target) {
  if (!target.amx || !ir::IsDepthwise(node)) return false;
  const Convolution conv = *ir::ConvolutionOf(node);
  return conv.x.dtype == DType::kBF16 &&
         conv.x.shape[1] % target.channel_block() != 0;
}

std::optional<ir::LibraryCandidate> GroupedCandidate(const ir::Node& node,
                                                     const ir::Target& target) {
  const auto conv = ir::ConvolutionOf(node);
  if (!conv.has_value() || !Applies(*conv, node.attrs())) return std::nullopt;
  const bool last = WantsChannelsLast(node, target);
  auto [activation, weight] =
      LayoutsFor(*conv, last ? conv->x.shape[1] + 1 : target.channel_block());
  if (last) activation = ChannelsLast();
  const GroupedPlan plan = Plan(*conv, activation, node.attrs());
  ir::LibraryCandidate c;
  c.name = c.algorithm = kGrouped;
  c.implementation = plan.implementation();
  c.workspace_bytes = plan.workspace_bytes();
  c.modelled_ns = ir::DirectNs(node, target);
  if (conv->kind == ConvKind::kGradWeight) {
    c.operands = {activation, activation};
    c.results = {weight};
  } else {
    c.operands = {activation, weight};
    if (node.num_inputs() == 3) c.operands.emplace_back();
    c.results = {activation};
  }
  return c;
}

std::optional<GroupedPlan> PlanGrouped(const codegen::LibraryCall& call) {
  const auto found = ConvolutionBy(call, kGrouped);
  if (!found.has_value()) return std::nullopt;
  const Convolution& conv = *found;
  if (!Applies(conv, call.attrs)) return std::nullopt;
  const Layout& layout = conv.x.layout;
  const bool plain = layout.is_row_major() || layout == ChannelsLast();
  const int64_t block =
      layout.tiles.size() == 1 ? layout.tiles[0].size : conv.x.shape[1] + 1;
  const auto [blocked, weight] = LayoutsFor(conv, block);
  const bool bias = call.operands.size() == 3;
  if ((!plain && layout != blocked) || conv.y.layout != layout ||
      conv.weight.layout != weight ||
      (bias && !HasOwnCalls(call.operands[2].dtype))) {
    return std::nullopt;
  }
  return Plan(conv, layout, call.attrs);
}

}  // namespace fusor::cpu
