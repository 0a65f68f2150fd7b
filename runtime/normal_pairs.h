#pragma once

#include <cstdint>
#include <utility>

namespace fusor::runtime {

// Maps 32 random bits to (0, 1), excluding 0, whose logarithm is infinite.
constexpr double OpenUniform(uint32_t bits) {
  return (static_cast<double>(bits) + 0.5) * 0x1p-32;
}

// Returns two standard normal numbers from one Philox block of a stream (Box
// and Muller, "A note on the generation of random normal deviates", 1958).
// Computed in fp64, accurate to a few ulps. Bit-identical on every processor
// and between the scalar and the batched function.
std::pair<double, double> NormalPair(uint64_t seed, uint64_t stream,
                                     uint32_t pair);

// Computes pairs `first` to first + kNormalPairs - 1.
inline constexpr int kNormalPairs = 64;
void NormalPairs(uint64_t seed, uint64_t stream, uint32_t first,
                 double (&even)[kNormalPairs], double (&odd)[kNormalPairs]);

}  // namespace fusor::runtime
