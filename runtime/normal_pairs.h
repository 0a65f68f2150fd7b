#pragma once

#include <cstdint>
#include <utility>

namespace fusor::runtime {

// Numbers in (0, 1) out of 32 random bits: a logarithm needs a positive one.
constexpr double OpenUniform(uint32_t bits) {
  return (static_cast<double>(bits) + 0.5) * 0x1p-32;
}

// Standard normal numbers, two of each Philox block of a stream (Box and
// Muller, "A note on the generation of random normal deviates", 1958). In fp64,
// within a few units in the last place and with the same bits on every
// processor, one at a time or many.
std::pair<double, double> NormalPair(uint64_t seed, uint64_t stream,
                                     uint32_t pair);

// Pairs `first` to first + kNormalPairs - 1.
inline constexpr int kNormalPairs = 64;
void NormalPairs(uint64_t seed, uint64_t stream, uint32_t first,
                 double (&even)[kNormalPairs], double (&odd)[kNormalPairs]);

}  // namespace fusor::runtime
