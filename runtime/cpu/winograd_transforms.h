#pragma once

#include <cstdint>

#include "runtime/cpu/winograd_multiply.h"

namespace fusor::cpu {

// The pieces of Winograd's F(2x2, 3x3) (Lavin and Gray, "Fast Algorithms for
// Convolutional Neural Networks", CVPR 2016) for bf16 on CPUs with AVX512-BF16:
// 4x4 elements of the input make 2x2 of the result, in 16 multiplications where
// a direct convolution has 36. With the input tile d, the kernel k and the
// result tile r, where * multiplies the 16 points one by one,
//   forward          r = A^T [sum over input channels (G k G^T) * (B^T d B)] A
//   weight gradient  k = G^T [sum over tiles (B^T d B) * (A r A^T)] G
// Transforms are computed in f32; what is multiplied is rounded to bf16, and
// the sums are f32. Activations are bf16 in blocks of 16 channels (aBcd16b).
// None of these functions checks anything or runs in parallel.

inline constexpr int64_t kWinogradPoints = 16;
// A 3x3 convolution of stride 1, or what else has that form: a data gradient
// takes the result's gradient as its input and pads it by 2 - pad.
// Channels are multiples of kWinogradBlock.
struct WinogradShape {
  int64_t images = 0;
  int64_t in_channels = 0, in_height = 0, in_width = 0;
  int64_t out_channels = 0, out_height = 0, out_width = 0;
  int64_t pad_height = 0, pad_width = 0;  // 0 to 2

  int64_t tile_rows() const { return (out_height + 1) / 2; }
  int64_t tile_columns() const { return (out_width + 1) / 2; }
  // Numbered through images, rows and columns.
  int64_t tiles() const { return images * tile_rows() * tile_columns(); }
  int64_t in_blocks() const { return in_channels / kWinogradBlock; }
  int64_t out_blocks() const { return out_channels / kWinogradBlock; }
  int64_t out_groups() const {
    return (out_blocks() + kWinogradGroup - 1) / kWinogradGroup;
  }
  // Blocks in that group.
  int64_t group_blocks(int64_t group) const {
    const int64_t left = out_blocks() - group * kWinogradGroup;
    return left < kWinogradGroup ? left : kWinogradGroup;
  }
  // Input channels as TransformInput writes them: zeros fill up pairs of
  // blocks.
  int64_t padded_in_channels() const {
    return (in_blocks() + 1) / 2 * 2 * kWinogradBlock;
  }
};

struct IndexRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// B^T d B of these tiles, v[point][tile][padded_in_channels]; `stride` elements
// from point to point.
void TransformInput(const WinogradShape& shape, const uint16_t* x,
                    IndexRange tiles, uint16_t* v, int64_t stride);

// G k G^T of these pairs of blocks (out * padded_in_channels / 16 + in), for
// Multiply: u[group][point][input channel / 2][channel of the group][2]. The
// weight has the layout ABcd16b16a, or, `turned`, ABcd16a16b with the input as
// its first dimension and the kernel turned by 180 degrees: a data gradient's.
void TransformWeight(const WinogradShape& shape, const uint16_t* weight,
                     bool turned, IndexRange pairs, uint16_t* u);

// A^T m A of these tiles of the group, where m[point][tile][channel of the
// group], `stride` elements from point to point; plus bias, if any, with ReLU
// if asked for, rounded into y.
struct WinogradEpilogue {
  const float* bias = nullptr;  // [out_channels]
  bool relu = false;
};
void TransformOutput(const WinogradShape& shape, const float* m, int64_t stride,
                     IndexRange tiles, int64_t group,
                     const WinogradEpilogue& epilogue, uint16_t* y);

// For a weight gradient, two tiles side by side, the last one of an odd range
// with zeros: B^T d B of an input block, or A r A^T of a block of the result's
// gradient, as out[point][tile / 2][channel of the block][2]; `stride` elements
// from point to point, `step` from pair to pair. The sign of the last row and
// column of A r A^T is left to TransformWeightGradient.
void PairInputTiles(const WinogradShape& shape, const uint16_t* x,
                    int64_t block, IndexRange tiles, uint16_t* out,
                    int64_t stride, int64_t step);
void PairResultTiles(const WinogradShape& shape, const uint16_t* dy,
                     int64_t block, IndexRange tiles, uint16_t* out,
                     int64_t stride, int64_t step);

// G^T m G of these pairs of blocks (out * in_blocks + in) into dw (ABcd16b16a),
// where m is the sum, in order, of `count` parts, `part_stride` elements apart:
// [group][point][input channel][channel of the group]. In f32 or rounded to
// bf16.
void TransformWeightGradient(const WinogradShape& shape, const float* parts,
                             int64_t count, int64_t part_stride,
                             IndexRange pairs, float* dw);
void TransformWeightGradient(const WinogradShape& shape, const float* parts,
                             int64_t count, int64_t part_stride,
                             IndexRange pairs, uint16_t* dw);

}  // namespace fusor::cpu
