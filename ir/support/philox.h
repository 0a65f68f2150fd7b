#pragma once

#include <array>
#include <cstdint>

namespace fusor {

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011): a pure function from a 128-bit counter and a 64-bit key to 128
// random bits. All randomness in fusor (dropout, initialisation, augmentation,
// shuffling) uses it, so that no result depends on threads or order.
constexpr std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter,
                                         uint64_t key) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0,
               static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1,
               static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

// Converts 24 random bits to a float in [0, 1). Exact in f32 and f64, hence the
// same value in every backend and language.
constexpr float UniformFloat(uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

// Returns element `index` of the stream (key, step, site, rank); defines the
// `random` op. Four consecutive elements share one Philox block.
constexpr float RandomUniform(uint64_t key, uint32_t step, uint32_t site,
                              uint32_t rank, uint64_t index) {
  const auto block =
      Philox({static_cast<uint32_t>(index >> 2), step, site, rank}, key);
  return UniformFloat(block[index & 3]);
}

}  // namespace fusor
