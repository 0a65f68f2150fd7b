#include <isa-l/crc.h>

#include <algorithm>

#include "ir/support/hash.h"

namespace fusor {

uint32_t Crc32c(std::string_view bytes, uint32_t crc) {
  // isa-l counts bytes in an int.
  constexpr size_t kPiece = size_t{1} << 30;
  crc = ~crc;
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), kPiece);
    // It does not write through its pointer.
    auto* data = const_cast<char*>(bytes.data());
    crc = crc32_iscsi(reinterpret_cast<unsigned char*>(data),
                      static_cast<int>(count), crc);
    bytes.remove_prefix(count);
  }
  return ~crc;
}

}  // namespace fusor
