#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/support/file.h"

namespace fusor::runtime {

// A file in a zip archive.
struct ZipEntry {
  int64_t header = 0;   // position of its local header
  uint64_t stored = 0;  // bytes in the archive
  uint64_t size = 0;    // bytes after unpacking
  uint32_t crc = 0;     // CRC-32
  uint16_t method = 0;  // 0: stored, 8: deflate
  bool encrypted = false;
};

// Calls `use` with the name of each member of a zip archive; folders end with a
// slash, links are left out. Names are keys, never paths. Reads zip64. libzip
// would read more methods, but a handle of its serves one thread at a time, and
// holds all names again.
//
// Throws kData if the archive is damaged, or if a member is larger than deflate
// can make it.
void ReadZipDirectory(
    const InputFile& file,
    const std::function<void(std::string_view name, const ZipEntry&)>& use);

// Reads and unpacks a member into `bytes`. `name` names it in messages. Throws
// kData if it is damaged, encrypted or packed with another method.
void ReadZipEntry(const InputFile& file, const ZipEntry& entry,
                  std::string_view name, std::vector<uint8_t>& bytes);

// Returns whether a file that starts with these bytes is a zip archive.
bool IsZip(std::span<const uint8_t> start);

}  // namespace fusor::runtime
