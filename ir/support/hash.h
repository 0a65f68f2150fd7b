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

// Computes CRC-32C (Castagnoli) as in iSCSI and TFRecord; "123456789" gives
// e3069283. `crc` is the checksum of the preceding bytes, for incremental use.
// Detects every error burst of at most 32 bits.
uint32_t Crc32c(std::string_view bytes, uint32_t crc = 0);

}  // namespace fusor
