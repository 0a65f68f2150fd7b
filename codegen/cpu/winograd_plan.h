#pragma once

#include <optional>
#include <string_view>
#include <variant>

#include "codegen/plan/plan.h"
#include "ir/support/integer_math.h"
#include "ir/target/conv_problem.h"
#include "ir/target/target.h"

namespace fusor::cpu {

// Winograd's F(2x2, 3x3) in bf16 (runtime/cpu/winograd_kernels.h), which oneDNN
// lacks. It supports 3x3 convolutions of stride 1 with padding of at most 2,
// and their gradients. Tensors are bf16; the weight gradient may also be f32.
// Channels are multiples of 16. Each block of tiles is transformed, multiplied
// and transformed back in one core's caches. The error against exact arithmetic
// is about 2.5 times that of a direct convolution, whose bf16 result is also
// rounded. An f32 weight gradient has the error of bf16 operands, not of f32.

inline constexpr char kWinogradImplementation[] = "fusor_wino_2x3:avx512_bf16";

inline constexpr int64_t kWinogradPoints = 16;
inline constexpr int64_t kWinogradBlock = 16;  // channels
// Maximum number of blocks of result channels that are multiplied together.
inline constexpr int64_t kWinogradGroup = 4;

// A 3x3 convolution of stride 1. A data gradient has this form too: its input
// is the result's gradient, padded by 2 - pad.
struct WinogradGeometry {
  int64_t images = 0;
  int64_t groups = 0;
  int64_t in_channels = 0, in_height = 0, in_width = 0;  // channels of a group
  int64_t out_channels = 0, out_height = 0, out_width = 0;
  int64_t pad_height = 0, pad_width = 0;  // 0 to 2
};

WinogradGeometry WinogradGeometryOf(const ir::Convolution& conv,
                                    const ir::Attrs& attrs);

// Channels are multiples of kWinogradBlock.
struct WinogradShape : WinogradGeometry {
  int64_t tile_rows() const { return (out_height + 1) / 2; }
  int64_t tile_columns() const { return (out_width + 1) / 2; }
  // Returns the number of tiles, which are numbered by image, row and column.
  int64_t tiles() const { return images * tile_rows() * tile_columns(); }
  int64_t in_blocks() const { return in_channels / kWinogradBlock; }
  int64_t out_blocks() const { return out_channels / kWinogradBlock; }
  int64_t out_groups() const {
    return (out_blocks() + kWinogradGroup - 1) / kWinogradGroup;
  }
  // Returns the number of blocks in this group.
  int64_t group_blocks(int64_t group) const {
    const int64_t left = out_blocks() - group * kWinogradGroup;
    return left < kWinogradGroup ? left : kWinogradGroup;
  }
  // Returns the input channels of a transformed tile: padded with zeros to
  // pairs of blocks.
  int64_t padded_in_channels() const {
    return (in_blocks() + 1) / 2 * 2 * kWinogradBlock;
  }
};

// Forward and data gradient. The workspace holds the transformed weight, then
// for each part of the work the transformed input and the products of a block
// of tiles.
struct WinogradConvPlan {
  WinogradShape shape;
  int64_t parts = 0;     // of the work, one per thread
  bool flipped = false;  // a data gradient, whose filter is flipped
  bool relu = false;
  std::optional<ir::DType> bias;       // its dtype, if any
  int64_t block = 0;                   // tiles
  int64_t v_stride = 0, m_stride = 0;  // elements between points
  int64_t u_bytes = 0;                 // transformed weight
  int64_t v_bytes = 0, m_bytes = 0;    // per part: inputs and products

  int64_t workspace_bytes() const {
    return u_bytes + parts * (v_bytes + m_bytes);
  }
};

// Each part of the work has a range of tiles and of groups of result channels.
// The sums of the tile ranges are added at the end. Channels are divided too if
// there are many, because their sums would not stay in a cache. The workspace
// holds the sums of all tile ranges, then the transformed tiles of each part.
struct WinogradGradWeightPlan {
  WinogradShape shape;
  int64_t parts = 0;   // of the work, one per thread
  ir::DType result{};  // f32 or bf16
  int64_t group_parts = 0, tile_parts = 0;
  int64_t part_groups = 0;             // at most, per part
  int64_t block = 0;                   // tiles
  int64_t v_stride = 0, w_stride = 0;  // elements between points
  int64_t sums = 0;                    // elements, per tile range
  int64_t own_bytes = 0;               // per part

  int64_t workspace_bytes() const {
    return tile_parts * sums * static_cast<int64_t>(sizeof(float)) +
           parts * own_bytes;
  }
};

using WinogradPlan = std::variant<WinogradConvPlan, WinogradGradWeightPlan>;

// Returns the tensors of a call if it is a convolution by this algorithm.
std::optional<ir::Convolution> ConvolutionBy(const codegen::LibraryCall& call,
                                             std::string_view algorithm);

int64_t WorkspaceBytes(const WinogradPlan& plan);

// Returns the candidate for a node; nullopt if it does not apply, or if the
// target or this machine's CPU lacks the instructions.
std::optional<ir::LibraryCandidate> WinogradCandidate(const ir::Node& node,
                                                      const ir::Target& target);

// Returns the plan for a call of that candidate; nullopt for other calls. The
// work is partitioned for the current number of threads of the calling thread's
// OpenMP regions, even if others run it later. Values of weight gradients
// depend on that number.
std::optional<WinogradPlan> PlanWinograd(const codegen::LibraryCall& call);

}  // namespace fusor::cpu
