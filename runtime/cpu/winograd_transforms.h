#pragma once

#include <cstdint>

#include "runtime/cpu/winograd_multiply.h"

namespace fusor::cpu {

// Winograd's F(2x2, 3x3) (Lavin and Gray, "Fast Algorithms for Convolutional
// Neural Networks", CVPR 2016) for bf16 on CPUs with AVX512-BF16: 4x4 elements
// of the input give 2x2 of the result, with 16 multiplications instead of 36.
// With the input tile d, the filter k, the result tile r and * as the product
// of the 16 points one by one,
//   forward          r = A^T [sum over input channels (G k G^T) * (B^T d B)] A
//   weight gradient  k = G^T [sum over tiles (B^T d B) * (A r A^T)] G
// Transforms are computed in f32, their results are rounded to bf16 and the
// products are summed in f32. Activations are bf16 in blocks of 16 channels
// (aBcd16b). The functions check nothing and are single-threaded.

inline constexpr int64_t kWinogradPoints = 16;
// A 3x3 convolution of stride 1. A data gradient has this form too: its input
// is the result's gradient, padded by 2 - pad. Channels are multiples of
// kWinogradBlock.
struct WinogradShape {
  int64_t images = 0;
  int64_t in_channels = 0, in_height = 0, in_width = 0;
  int64_t out_channels = 0, out_height = 0, out_width = 0;
  int64_t pad_height = 0, pad_width = 0;  // 0 to 2

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
  // Returns the input channels that TransformInput writes: padded with zeros to
  // pairs of blocks.
  int64_t padded_in_channels() const {
    return (in_blocks() + 1) / 2 * 2 * kWinogradBlock;
  }
};

struct IndexRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// Stores B^T d B of the tiles in v[point][tile][padded_in_channels], with
// `stride` elements between points.
void TransformInput(const WinogradShape& shape, const uint16_t* x,
                    IndexRange tiles, uint16_t* v, int64_t stride);

// Stores G k G^T of the pairs of blocks (out * padded_in_channels / 16 + in)
// for Multiply: u[group][point][input channel / 2][channel of the group][2].
// The weight's layout is ABcd16b16a. If `turned`, for data gradients, it is
// ABcd16a16b with the input as first dimension, and the filter is flipped.
void TransformWeight(const WinogradShape& shape, const uint16_t* weight,
                     bool turned, IndexRange pairs, uint16_t* u);

// Stores A^T m A of the tiles for one group of result channels, plus bias and
// with ReLU if requested, rounded to bf16, in y. m is [point][tile][channel of
// the group], with `stride` elements between points.
struct WinogradEpilogue {
  const float* bias = nullptr;  // [out_channels]
  bool relu = false;
};
void TransformOutput(const WinogradShape& shape, const float* m, int64_t stride,
                     IndexRange tiles, int64_t group,
                     const WinogradEpilogue& epilogue, uint16_t* y);

// Store pairs of tiles for a weight gradient: B^T d B of an input block, or
// A r A^T of a block of the result's gradient. The last tile of an odd range is
// paired with zeros. Layout: out[point][tile / 2][channel of the block][2],
// with `stride` elements between points and `step` between pairs. The sign of
// the last row and column of A r A^T is left to TransformWeightGradient.
void PairInputTiles(const WinogradShape& shape, const uint16_t* x,
                    int64_t block, IndexRange tiles, uint16_t* out,
                    int64_t stride, int64_t step);
void PairResultTiles(const WinogradShape& shape, const uint16_t* dy,
                     int64_t block, IndexRange tiles, uint16_t* out,
                     int64_t stride, int64_t step);

// Store G^T m G of the pairs of blocks (out * in_blocks + in) in dw
// (ABcd16b16a), in f32 or rounded to bf16. m is the sum, in order, of `count`
// parts, `part_stride` elements apart: [group][point][input channel][channel of
// the group].
void TransformWeightGradient(const WinogradShape& shape, const float* parts,
                             int64_t count, int64_t part_stride,
                             IndexRange pairs, float* dw);
void TransformWeightGradient(const WinogradShape& shape, const float* parts,
                             int64_t count, int64_t part_stride,
                             IndexRange pairs, uint16_t* dw);

}  // namespace fusor::cpu
