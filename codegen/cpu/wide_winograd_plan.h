#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "codegen/cpu/host.h"
#include "codegen/cpu/winograd_plan.h"
#include "codegen/plan/plan.h"
#include "ir/target/conv_problem.h"
#include "ir/target/target.h"

namespace fusor::cpu {

// Winograd's F(4x4, 3x3) in f32 (Lavin and Gray, "Fast Algorithms for
// Convolutional Neural Networks", CVPR 2016) for CPUs with AVX2 or AVX-512.
// oneDNN lacks it for AVX2, for groups and for channels that are no multiples
// of 16, and its sums with AVX-512 are less exact. It supports 3x3 convolutions
// of stride 1 with padding of at most 2 and their gradients, except for weight
// gradients that oneDNN has with AVX-512. The channels of a group are multiples
// of 8.
//
// An input tile of 6x6 pixels gives 36 points, a result tile of 4x4 pixels too.
// For each point, the products of tiles and weights are a matrix product.

inline constexpr int64_t kWidePoints = 36;
inline constexpr int64_t kWideTile = 4;  // rows and columns of a result tile
// Elements between points: strides of a power of two would map all points of a
// tile to the same cache set.
inline constexpr int64_t kWidePad = 16;

// A data gradient flips the filter.
//
// Result channels of a group are divided into panels of two vectors, which are
// multiplied together. The last panel may have one vector, and its last vector
// may exceed the channels.
//
// Forward and data gradient: a task is a range of a group's tiles. Each part of
// the work, one per thread, has a share of the tasks and a range of panels. The
// workspace holds the transformed weights, then for each part the transformed
// input and the products of a task, and the part's own weights of a panel if a
// task has all tiles of its group. Weight gradient: groups run one after the
// other. Each part has a range of tiles and of input channels. The workspace
// holds the sums of each range of tiles, then for each part the transformed
// tiles of a block.
struct WideWinogradPlan : WinogradGeometry {
  ir::ConvKind kind{};
  int64_t lanes = 0;  // of a vector: 8 or 16
  // Channels that are transformed together, a block of the weight's layout: the
  // lanes, or 8 with AVX-512 if the channels of a group are no multiples of 16.
  int64_t chunk = 0;
  // Contiguous channels of a pixel: the lanes, or all if channels are last.
  int64_t in_contiguous = 0, out_contiguous = 0;
  bool bias = false;
  int64_t tile_parts = 0, channel_parts = 0;
  int64_t tile_ranges = 0;  // of a group
  int64_t block = 0;        // tiles, at most
  // Panels of which a part computes one point after the other. A weight
  // gradient has no such loop.
  int64_t panels_together = 0;
  int64_t v_row = 0;                   // elements between tiles of the input
  int64_t v_stride = 0, m_stride = 0;  // elements between points

  VectorIsa isa() const {
    return lanes == 16 ? VectorIsa::kAvx512 : VectorIsa::kAvx2;
  }
  std::string implementation() const {
    return "fusor_wino_4x3:" + std::string(IsaName(isa()));
  }

  int64_t tile_rows() const { return (out_height + kWideTile - 1) / kWideTile; }
  int64_t tile_columns() const {
    return (out_width + kWideTile - 1) / kWideTile;
  }
  // Tiles of a group are numbered by image, row and column.
  int64_t tiles() const { return images * tile_rows() * tile_columns(); }
  int64_t parts() const { return tile_parts * channel_parts; }
  int64_t in_chunks() const { return in_channels / chunk; }
  int64_t out_chunks() const { return out_channels / chunk; }
  int64_t panel_channels() const { return 2 * lanes; }
  int64_t panel_chunks() const { return panel_channels() / chunk; }
  int64_t out_panels() const { return CeilDiv(out_channels, panel_channels()); }

  // The sizes below are elements of f32. This one is a panel's transformed
  // weights.
  int64_t panel_weights() const {
    return kWidePoints * (in_channels * panel_channels() + kWidePad);
  }
  int64_t group_weights() const { return out_panels() * panel_weights(); }
  // If a task has all tiles of its group, it transforms the weights of one
  // panel at a time: all of them would not stay in a cache.
  bool has_own_weights() const {
    return kind != ir::ConvKind::kGradWeight && tile_ranges == 1;
  }
  // Elements between the sums of input channels, and between points.
  int64_t sum_row() const { return RoundUp(out_channels, lanes); }
  int64_t sum_stride() const { return in_channels * sum_row() + kWidePad; }
  int64_t shared() const {
    if (has_own_weights()) return 0;
    return kind == ir::ConvKind::kGradWeight
               ? tile_parts * kWidePoints * sum_stride()
               : groups * group_weights();
  }
  int64_t part() const {
    return kWidePoints * (v_stride + m_stride) +
           (has_own_weights() ? panel_weights() : 0);
  }

  int64_t workspace_bytes() const {
    return (shared() + parts() * part()) * static_cast<int64_t>(sizeof(float));
  }
};

// Returns the candidate for a node; nullopt if it does not apply, or if the
// target's blocks are others or this machine's CPU lacks the instructions.
std::optional<ir::LibraryCandidate> WideWinogradCandidate(
    const ir::Node& node, const ir::Target& target);

// Returns the plan for a call of that candidate; nullopt for other calls. The
// work is partitioned for the current number of threads of the calling thread's
// OpenMP regions, even if others run it later. Values of weight gradients
// depend on that number.
std::optional<WideWinogradPlan> PlanWideWinograd(
    const codegen::LibraryCall& call);

}  // namespace fusor::cpu
