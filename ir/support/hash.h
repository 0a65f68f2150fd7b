#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fusor {

// FNV-1a, 64 bit. Stable across processes and machines, so it may be used in
// file names, plans and dumps. Not for untrusted input.
constexpr uint64_t kHashSeed = 0xcbf29ce484222325ULL;

constexpr uint64_t HashBytes(std::string_view bytes,
                             uint64_t seed = kHashSeed) {
  uint64_t hash = seed;
  for (unsigned char c : bytes) {
    hash = (hash ^ c) * 0x100000001b3ULL;
  }
  return hash;
}

constexpr uint64_t HashCombine(uint64_t seed, uint64_t value) {
  for (int i = 0; i < 8; ++i) {
    seed = (seed ^ (value & 0xff)) * 0x100000001b3ULL;
    value >>= 8;
  }
  return seed;
}

}  // namespace fusor
