#include "codegen/cpu/depthwise_plan.h"

#include <omp.h>

#include <algorithm>

#include "codegen/cpu/onednn_layout.h"
#include "ir/target/conv_problem.h"
#include "ir/target/cost.h"

namespace fusor::cpu {
namespace {

using ir::ConvKind;
using ir::Convolution;
using ir::DType;
using ir::Layout;
using ir::TensorType;

// Tasks per thread below which images are divided, too.
constexpr int64_t kTasksPerThread = 4;

bool Applies(const Convolution& conv, const ir::Attrs& attrs) {
  const int64_t channels = conv.x.shape[1];
  const auto is_known = [](DType dtype) {
    return dtype == DType::kF32 || dtype == DType::kBF16;
  };
  return conv.kind == ConvKind::kGradWeight && channels > 1 &&
         attrs.Int("groups") == channels && conv.y.shape[1] == channels &&
         is_known(conv.x.dtype) && conv.y.dtype == conv.x.dtype &&
         is_known(conv.weight.dtype);
}

struct Layouts {
  Layout activation, weight;
};

// Returns layouts with contiguous channels: blocked if the block divides the
// channels, else channels-last.
Layouts LayoutsFor(const Convolution& conv, int64_t block) {
  const Layout blocked = BlockedLayout(conv.x.shape, block);
  if (blocked.is_row_major()) return {Layout{{0, 2, 3, 1}, {}}, {}};
  return {blocked, Layout{{0, 1, 2, 3}, {{0, block}}}};
}

// `layout`: of the activations.
DepthwisePlan Plan(const Convolution& conv, const Layout& layout,
                   const ir::Attrs& attrs) {
  DepthwisePlan plan{.isa = WidestIsa(),
                     .parts = omp_get_max_threads(),
                     .kernel_height = conv.weight.shape[2],
                     .kernel_width = conv.weight.shape[3],
                     .out_width = conv.y.shape[3],
                     .stride = attrs.Ints("stride"),
                     .pad = attrs.Ints("pad"),
                     .dilation = attrs.Ints("dilation")};
  const std::vector<Layout::Tile>& tiles = layout.tiles;
  plan.lanes = !tiles.empty()                   ? tiles[0].size
               : plan.isa == VectorIsa::kAvx512 ? 16
                                                : 8;
  plan.blocks = (conv.x.shape[1] + plan.lanes - 1) / plan.lanes;
  plan.ranges =
      std::min(conv.x.shape[0], kTasksPerThread * plan.parts / plan.blocks + 1);
  plan.ring_rows = (plan.kernel_height - 1) * plan.dilation[0] + 1;
  plan.row_pixels =
      std::max(plan.pad[1] + conv.x.shape[3],
               (plan.out_width - 1) * plan.stride[1] +
                   (plan.kernel_width - 1) * plan.dilation[1] + 1);
  return plan;
}

}  // namespace

std::optional<ir::LibraryCandidate> DepthwiseCandidate(
    const ir::Node& node, const ir::Target& target) {
  const auto conv = ir::ConvolutionOf(node);
  if (!conv.has_value() || !Applies(*conv, node.attrs())) return std::nullopt;
  const Layouts layouts = LayoutsFor(*conv, target.channel_block());
  const DepthwisePlan plan = Plan(*conv, layouts.activation, node.attrs());
  ir::LibraryCandidate c;
  c.name = c.algorithm = kDepthwise;
  c.implementation = plan.implementation();
  c.workspace_bytes = plan.workspace_bytes();
  c.modelled_ns = ir::DirectNs(node, target);
  c.operands = {layouts.activation, layouts.activation};
  c.results = {layouts.weight};
  return c;
}

std::optional<DepthwisePlan> PlanDepthwise(const codegen::LibraryCall& call) {
  if (call.op != ir::OpKind::kConv2dGradWeight ||
      call.attrs.String("algorithm") != kDepthwise) {
    return std::nullopt;
  }
  const Convolution conv{ConvKind::kGradWeight, call.operands[0],
                         call.results[0], call.operands[1]};
  if (!Applies(conv, call.attrs)) return std::nullopt;
  const std::vector<Layout::Tile>& tiles = conv.x.layout.tiles;
  const Layouts layouts =
      LayoutsFor(conv, tiles.empty() ? conv.x.shape[1] + 1 : tiles[0].size);
  if (conv.x.layout != layouts.activation ||
      conv.y.layout != layouts.activation ||
      conv.weight.layout != layouts.weight) {
    return std::nullopt;
  }
  return Plan(conv, conv.x.layout, call.attrs);
}

}  // namespace fusor::cpu
