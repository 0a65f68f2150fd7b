#include "codegen/cpu/plane_conv_plan.h"

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

// Tasks per thread below which a weight gradient's images are divided, too.
constexpr int64_t kTasksPerThread = 4;
// Channels per group: fewer leave most of a tile's rows empty, for more
// oneDNN's matrices are large enough.
constexpr int64_t kFewestPerGroup = 3;
constexpr int64_t kMostPerGroup = 64;
// Size of a weight gradient's planes: the images of a plane share the cost of
// adding up vectors.
constexpr int64_t kPlaneBytes = 4096;
// Elements of the longest vector, and of the vectors of a tile.
constexpr int64_t kVector = 32;
constexpr int64_t kTileElements = 48;

bool Applies(const Convolution& conv, const ir::Attrs& attrs) {
  const int64_t groups = attrs.Int("groups");
  const int64_t in = conv.x.shape[1] / groups;
  const int64_t out = conv.y.shape[1] / groups;
  return groups > 1 && std::min(in, out) >= kFewestPerGroup &&
         std::max(in, out) <= kMostPerGroup && HasOwnCalls(conv.x.dtype) &&
         conv.y.dtype == conv.x.dtype && HasOwnCalls(conv.weight.dtype);
}

int64_t FloorDiv(int64_t a, int64_t b) {
  return a >= 0 ? a / b : -CeilDiv(-a, b);
}

// One dimension of the geometry.
struct Axis {
  int64_t source = 0, target = 0;  // pixels
  int64_t kernel = 0, stride = 0, pad = 0, dilation = 0;
  bool backward = false;

  int64_t source_phases() const { return backward ? 1 : stride; }
  int64_t target_phases() const { return backward ? stride : 1; }

  // How pixel t of a phase of the target meets position k of the filter: at
  // pixel t + shift of a phase of the source. nullopt if it does not.
  struct Meeting {
    int64_t phase = 0, shift = 0;
  };
  std::optional<Meeting> Meet(int64_t target_phase, int64_t k) const {
    if (!backward) {
      const int64_t from = k * dilation - pad;
      const int64_t shift = FloorDiv(from, stride);
      return Meeting{from - shift * stride, shift};
    }
    const int64_t from = target_phase + pad - k * dilation;
    const int64_t shift = FloorDiv(from, stride);
    if (from != shift * stride) return std::nullopt;
    return Meeting{0, shift};
  }

  // How far the filter reaches from a pixel of the target.
  int64_t before = 0, after = 0;

  // Pixels of a phase of the source, with as many zeros after them as the
  // filter meets there or before the first one.
  int64_t extent() const {
    const int64_t pixels = CeilDiv(source, source_phases());
    return std::max(pixels + before, CeilDiv(target, target_phases()) + after);
  }

  void Finish() {
    for (int64_t phase = 0; phase < target_phases(); ++phase) {
      for (int64_t k = 0; k < kernel; ++k) {
        const auto meeting = Meet(phase, k);
        if (!meeting.has_value()) continue;
        before = std::max(before, -meeting->shift);
        after = std::max(after, meeting->shift);
      }
    }
  }
};

Axis MakeAxis(const Convolution& conv, const ir::Attrs& attrs, int dim) {
  const bool backward = conv.kind == ConvKind::kGradInput;
  Axis axis{.source = (backward ? conv.y : conv.x).shape[2 + dim],
            .target = (backward ? conv.x : conv.y).shape[2 + dim],
            .kernel = conv.weight.shape[2 + dim],
            .stride = attrs.Ints("stride")[dim],
            .pad = attrs.Ints("pad")[dim],
            .dilation = attrs.Ints("dilation")[dim],
            .backward = backward};
  axis.Finish();
  return axis;
}

PlaneConvPlan Plan(const Convolution& conv, const ir::Attrs& attrs) {
  PlaneConvPlan plan{.kind = conv.kind,
                     .isa = WidestIsa(),
                     .groups = attrs.Int("groups"),
                     .kernel_height = conv.weight.shape[2],
                     .kernel_width = conv.weight.shape[3],
                     .ranges = 1,
                     .parts = omp_get_max_threads()};
  plan.source_channels = conv.x.shape[1] / plan.groups;
  plan.target_channels = conv.y.shape[1] / plan.groups;
  if (conv.kind == ConvKind::kGradInput) {
    std::swap(plan.source_channels, plan.target_channels);
  }
  const bool is_bf16 =
      conv.x.dtype == DType::kBF16 &&
      (conv.kind == ConvKind::kGradWeight || conv.weight.dtype == DType::kBF16);
  plan.pairs = is_bf16 && plan.isa == VectorIsa::kAvx512 &&
               __builtin_cpu_supports("avx512bf16") &&
               plan.source_channels % 2 == 0;
  plan.geometry = PlanConvPlanes(conv, attrs);
  plan.batch = 1;
  if (conv.kind == ConvKind::kGradWeight) {
    plan.batch = std::clamp<int64_t>(
        kPlaneBytes / (plan.halves() ? 2 : 4) / plan.geometry.image, 1,
        conv.x.shape[0]);
    plan.ranges = std::min(conv.x.shape[0] / plan.batch,
                           kTasksPerThread * plan.parts / plan.groups + 1);
  }
  // The last vectors reach beyond the images. An odd multiple of `kVector`
  // keeps planes from competing for the same sets of a cache.
  plan.plane = RoundUp(plan.geometry.lead + plan.batch * plan.geometry.image +
                           plan.geometry.reach + kTileElements,
                       2 * kVector) +
               kVector;
  return plan;
}

}  // namespace

// The zeros after a row, or an image, are also those before the next.
ConvPlanes PlanConvPlanes(const Convolution& conv, const ir::Attrs& attrs) {
  const Axis rows = MakeAxis(conv, attrs, 0),
             columns = MakeAxis(conv, attrs, 1);
  ConvPlanes planes{
      .source_phases = {rows.source_phases(), columns.source_phases()},
      .target_phases = {rows.target_phases(), columns.target_phases()},
      .pitch = columns.extent()};
  planes.lead = rows.before * planes.pitch + columns.before;
  planes.image = rows.extent() * planes.pitch;
  planes.reach = rows.after * planes.pitch + columns.after;
  for (int64_t a = 0; a < rows.target_phases(); ++a) {
    for (int64_t b = 0; b < columns.target_phases(); ++b) {
      std::vector<ConvPlanes::Tap>& taps = planes.taps.emplace_back();
      for (int64_t h = 0; h < rows.kernel; ++h) {
        for (int64_t w = 0; w < columns.kernel; ++w) {
          const auto row = rows.Meet(a, h);
          const auto column = columns.Meet(b, w);
          if (!row.has_value() || !column.has_value()) continue;
          taps.push_back(
              {.row = h,
               .column = w,
               .phase = row->phase * columns.source_phases() + column->phase,
               .offset =
                   planes.lead + row->shift * planes.pitch + column->shift});
        }
      }
    }
  }
  return planes;
}

std::optional<ir::LibraryCandidate> PlaneConvCandidate(
    const ir::Node& node, const ir::Target& target) {
  const auto conv = ir::ConvolutionOf(node);
  if (!conv.has_value() || !Applies(*conv, node.attrs())) return std::nullopt;
  const PlaneConvPlan plan = Plan(*conv, node.attrs());
  const Layout x = BlockedLayout(conv->x.shape, target.channel_block());
  const Layout y = BlockedLayout(conv->y.shape, target.channel_block());
  ir::LibraryCandidate c;
  c.name = c.algorithm = kPlanes;
  c.implementation = plan.implementation();
  c.workspace_bytes = plan.workspace_bytes();
  c.modelled_ns = ir::DirectNs(node, target);
  switch (conv->kind) {
    case ConvKind::kForward:
      c.operands = {x, Layout{}};
      if (node.num_inputs() == 3) c.operands.emplace_back();
      c.results = {y};
      break;
    case ConvKind::kGradInput:
      c.operands = {y, Layout{}};
      c.results = {x};
      break;
    case ConvKind::kGradWeight:
      c.operands = {x, y};
      c.results = {Layout{}};
      break;
  }
  return c;
}

std::optional<PlaneConvPlan> PlanPlaneConv(const codegen::LibraryCall& call) {
  const auto found = ConvolutionBy(call, kPlanes);
  if (!found.has_value()) return std::nullopt;
  const Convolution& conv = *found;
  if (!Applies(conv, call.attrs)) return std::nullopt;
  const auto is_known = [](const TensorType& image) {
    const std::vector<Layout::Tile>& tiles = image.layout.tiles;
    return image.layout.is_row_major() || image.layout == ChannelsLast() ||
           (tiles.size() == 1 &&
            image.layout == BlockedLayout(image.shape, tiles[0].size));
  };
  const bool bias = call.operands.size() == 3;
  if (!is_known(conv.x) || !is_known(conv.y) ||
      !conv.weight.layout.is_row_major() ||
      (bias && !HasOwnCalls(call.operands[2].dtype))) {
    return std::nullopt;
  }
  return Plan(conv, call.attrs);
}

}  // namespace fusor::cpu
