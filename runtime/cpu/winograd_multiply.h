#pragma once

#include <cstdint>

namespace fusor::cpu {

// The matmuls of Winograd's convolution (winograd_transforms.h), which are nine
// tenths of its work.

inline constexpr int64_t kWinogradBlock = 16;  // channels
// Maximum number of blocks of result channels that are multiplied together.
inline constexpr int64_t kWinogradGroup = 4;

// Returns whether this machine's CPU has the instructions: AVX-512 with bf16.
bool HasWinogradKernels();

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

}  // namespace fusor::cpu
