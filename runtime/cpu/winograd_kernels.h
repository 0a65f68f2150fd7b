#pragma once

#include <cstdint>

#include "codegen/cpu/winograd_plan.h"
#include "runtime/cpu/thread_team.h"

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

// Stores B^T d B of the tiles in v[point][tile][padded_in_channels], with
// `stride` elements between points.
void TransformInput(const WinogradShape& shape, const uint16_t* x,
                    IndexRange tiles, uint16_t* v, int64_t stride);

// Stores G k G^T of the pairs of blocks (out * padded_in_channels / 16 + in)
// for Multiply: u[group][point][input channel / 2][channel of the group][2].
// The weight's layout is ABcd16b16a. If `flipped`, for data gradients, it is
// ABcd16a16b with the input as first dimension, and the filter is flipped.
void TransformWeight(const WinogradShape& shape, const uint16_t* weight,
                     bool flipped, IndexRange pairs, uint16_t* u);

// The matmuls, which are nine tenths of the work:
// c (+)= a b with rows of 16 * vectors results: c[row][.] is the sum over steps
// of dot products of two pairs, a[row][step] and each one of b[step].
struct WinogradProduct {
  const uint16_t* a = nullptr;
  int64_t row_stride = 0, step_stride = 0;  // elements of a
  const uint16_t* b = nullptr;  // [steps][16 * vectors][2], 64-byte aligned
  float* c = nullptr;           // [rows][16 * vectors], 64-byte aligned
  int64_t rows = 0, steps = 0;
  int64_t vectors = 0;  // 1 to kWinogradGroup
  bool adds = false;
};
void Multiply(const WinogradProduct& product);

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
