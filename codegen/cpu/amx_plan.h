#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "codegen/cpu/plane_conv_plan.h"
#include "codegen/plan/plan.h"
#include "ir/target/conv_problem.h"
#include "ir/target/target.h"

namespace fusor::cpu {

inline constexpr char kAmx[] = "amx";  // the algorithm's name
inline constexpr char kAmxImplementation[] = "fusor_amx";
inline constexpr char kSplitAmxImplementation[] = "fusor_amx_bf16x6";

// An AMX tile has 16 rows of 64 bytes: 32 elements of bf16, or 16 sums in f32,
// to each of which an instruction adds 32 products.
inline constexpr int64_t kAmxRows = 16;
inline constexpr int64_t kAmxDepth = 32;
inline constexpr int64_t kAmxTile = kAmxRows * kAmxDepth;  // of bf16
inline constexpr int64_t kAmxSums = kAmxRows * kAmxRows;   // of f32
// Rows and columns of the sums that are in tiles at a time: two by two tiles.
inline constexpr int64_t kAmxPanel = 2 * kAmxRows;
// The numbers of bf16 into which one of f32 is split: their sum is exact.
inline constexpr int64_t kAmxSplits = 3;

// fusor's own gradients of bf16 convolutions, and grouped convolutions, with
// tiles of AMX. Activations have channels last, and so have filters: [O, KH,
// KW, I]. An image is copied to planes (ConvPlanes) whose pixels have all
// channels of a group, so that 16 neighbours are a tile without a copy of their
// patches, which im2col needs. Groups are computed one after the other.
//
// A convolution or data gradient multiplies pixels of its source by weights,
// whose tiles are packed first. With strides, each phase of the input's
// gradient is a convolution of its own, without multiplications by the zeros
// between pixels.
//
// Groups of few channels are joined, so that they fill tiles. Their filters
// become one filter, whose weights are zero where channels belong to different
// groups. An infinity or NaN in one group makes the results of the groups
// joined with it NaN.
//
// A weight gradient sums over pixels, which AMX multiplies in pairs. The
// input's planes become [channels / 16, pixels / 2, 16, 2], once with pairs
// that begin at even pixels and once at odd ones: positions of the filter need
// both. The result's gradient becomes [pixels / 32, channels / 16, 16, 32].
struct AmxConvPlan {
  ir::ConvKind kind{};
  int64_t batch = 0;
  int64_t groups = 0;         // after joining; the last may have fewer channels
  int64_t joined_groups = 1;  // groups of the convolution in one of these
  int64_t all_in_channels = 0, all_out_channels = 0;     // of all groups
  int64_t in_channels = 0, in_height = 0, in_width = 0;  // of a group
  int64_t out_channels = 0, out_height = 0, out_width = 0;
  int64_t kernel_height = 0, kernel_width = 0;
  // If a weight gradient has few channels, the columns of the filter become
  // channels, too, which fill tiles better. A pixel of the planes is then all
  // pixels of the input that a row of the filter reads.
  bool merged = false;
  int64_t column_stride = 0, left_pad = 0;  // for `merged`
  bool weight_is_bf16 = false;
  ConvPlanes geometry{};
  int64_t image_parts = 0;    // into which threads divide the images
  int64_t channel_parts = 0;  // and the target's channels, or the groups
  // A weight gradient sums over this many images at a time, and in each of them
  // over this many tiles of pixels. They fit a cache.
  int64_t together = 0, chunk = 0;

  std::string implementation() const { return kAmxImplementation; }
  // Whether one part computes each sum of a weight gradient, at once. Then no
  // sums are kept in the workspace.
  bool is_complete() const {
    return image_parts == 1 && together == batch && chunk == steps();
  }
  int64_t parts() const { return image_parts * channel_parts; }
  int64_t taps() const { return kernel_height * (merged ? 1 : kernel_width); }
  int64_t phases() const {
    return geometry.source_phases[0] * geometry.source_phases[1];
  }

  bool of_weight() const { return kind == ir::ConvKind::kGradWeight; }
  bool of_input() const { return kind == ir::ConvKind::kGradInput; }
  // Channels of the planes and of the target, in tiles.
  int64_t plane_channels() const {
    if (of_input()) return out_channels;
    return in_channels * (merged ? kernel_width : 1);
  }
  int64_t source_blocks() const;
  int64_t target_blocks() const;
  // The target's tiles of channels of one part, at most.
  int64_t part_blocks() const;
  // Pixels in the plane of a phase of the target, from its first pixel to its
  // last, and the tiles of 32 pixels that hold them.
  int64_t span() const;
  int64_t steps() const { return (span() + kAmxDepth - 1) / kAmxDepth; }
  // Pixels of a plane of the source, an even number.
  int64_t pixels() const;

  // The workspace of a part, in bytes. All sizes are multiples of a cache line.
  int64_t planes_bytes() const;  // planes of one image of the source
  // Only for weight gradients, whose target is an operand:
  int64_t target_bytes() const;        // plane of one image of the target
  int64_t source_tiles_bytes() const;  // tiles of `together` images
  int64_t target_tiles_bytes() const;
  int64_t part_bytes() const;  // sum of the above
  // Bytes of memory that all parts use: the packed weights, or a weight
  // gradient's sums, which each part of the images has of its own.
  int64_t weights_bytes() const;
  // The filters of joined groups, [groups, result channels, taps, channels].
  int64_t joined_bytes() const;
  int64_t workspace_bytes() const;
};

// Returns the candidate for a node on CPUs with AMX; nullopt if it does not
// apply.
std::optional<ir::LibraryCandidate> AmxConvCandidate(const ir::Node& node,
                                                     const ir::Target& target);

// Returns the plan for a call of that candidate; nullopt for other calls. The
// work is partitioned for the current number of threads of the calling thread's
// OpenMP regions, on which a weight gradient's rounding depends. A CPU without
// AMX also runs the plan, slowly.
std::optional<AmxConvPlan> PlanAmxConv(const codegen::LibraryCall& call);

}  // namespace fusor::cpu
