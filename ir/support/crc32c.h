#pragma once

#include <cstdint>
#include <string_view>

namespace fusor::runtime {

// Computes CRC-32C (Castagnoli) as in iSCSI and TFRecord; "123456789" gives
// e3069283. `crc` is the checksum of the preceding bytes, for incremental use.
// Detects every error burst of at most 32 bits.
uint32_t Crc32c(std::string_view bytes, uint32_t crc = 0);

}  // namespace fusor::runtime
