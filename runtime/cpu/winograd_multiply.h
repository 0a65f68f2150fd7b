#pragma once

#include <cstdint>

namespace fusor::cpu {

// The products of Winograd's convolution (winograd_transforms.h): nine tenths
// of its work.

inline constexpr int64_t kWinogradBlock = 16;  // channels
// Blocks of result channels that are multiplied together, at most.
inline constexpr int64_t kWinogradGroup = 4;

// Whether this machine's CPU can multiply and transform: AVX-512 with bf16.
bool HasWinogradKernels();

// c (+)= a b in rows of 16 * vectors results: c[row][.] is the sum over steps
// of the products of two pairs, a[row][step] with each of b[step].
struct WinogradProduct {
  const uint16_t* a = nullptr;
  int64_t row_stride = 0, step_stride = 0;  // elements of a
  const uint16_t* b = nullptr;  // [steps][16 * vectors][2], at 64 bytes
  float* c = nullptr;           // [rows][16 * vectors], at 64 bytes
  int64_t rows = 0, steps = 0;
  int64_t vectors = 0;  // 1 to kWinogradGroup
  bool adds = false;
};
void Multiply(const WinogradProduct& product);

}  // namespace fusor::cpu
