#pragma once

#include <cstdint>
#include <string_view>

namespace fusor::runtime {

// CRC-32C (Castagnoli), as iSCSI and TFRecord have it: of "123456789" it is
// e3069283. `crc` is that of what comes before, so that pieces can be summed
// one after the other. Finds each error that lies within 32 bits.
uint32_t Crc32c(std::string_view bytes, uint32_t crc = 0);

}  // namespace fusor::runtime
