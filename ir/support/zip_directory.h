#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/file.h"

namespace fusor {

// A file in a zip archive.
struct ZipEntry {
  int64_t header = 0;   // position of its local header
  uint64_t stored = 0;  // bytes in the archive
  uint64_t size = 0;    // bytes after unpacking
  uint32_t crc = 0;     // CRC-32
  uint16_t method = 0;  // 0: stored, 8: deflate
  bool encrypted = false;

  bool is_plain() const { return method == 0 && !encrypted; }
};

// A zip archive in a file or in memory, which must outlive this object.
class ZipSource {
 public:
  // Errors are thrown with `code`; those of the system with the file's.
  explicit ZipSource(const InputFile& file, ErrorCode code = ErrorCode::kData)
      : path_(file.path()), code_(code), size_(file.size()), file_(&file) {}
  // `path` names it in messages. Errors are thrown with `code`.
  ZipSource(std::string path, std::span<const uint8_t> bytes, ErrorCode code)
      : path_(std::move(path)),
        code_(code),
        size_(static_cast<int64_t>(bytes.size())),
        memory_(bytes) {}

  const std::string& path() const { return path_; }
  ErrorCode code() const { return code_; }
  int64_t size() const { return size_; }
  // Reads the bytes from `offset` on. REQUIRES: they are within size().
  void Read(int64_t offset, std::span<uint8_t> bytes) const;

 private:
  std::string path_;
  ErrorCode code_;
  int64_t size_;
  const InputFile* file_ = nullptr;
  std::span<const uint8_t> memory_;
};

// Calls `use` with the name of each member of a zip archive. Folders end with a
// slash. Symbolic links are omitted. Names are keys, never paths. Reads zip64.
// Several threads may read an archive at once, which libzip does not permit.
//
// Throws if the archive is damaged, or if a member is larger than deflate can
// make it.
void ReadZipDirectory(
    const ZipSource& source,
    const std::function<void(std::string_view name, const ZipEntry&)>& use);

// Reads and unpacks a member into `bytes`. `name` names it in messages. Throws
// if it is damaged, encrypted or packed with another method than deflate.
void ReadZipEntry(const ZipSource& source, const ZipEntry& entry,
                  std::string_view name, std::vector<uint8_t>& bytes);

// Returns the position of a member's bytes in the archive. Reads them once, in
// pieces, to compare their checksum. Throws if the member is damaged. REQUIRES:
// entry.is_plain().
int64_t FindStoredEntry(const ZipSource& source, const ZipEntry& entry,
                        std::string_view name);

// Returns whether a file that starts with these bytes is a zip archive.
bool IsZip(std::span<const uint8_t> start);

}  // namespace fusor
