#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/zip_directory.h"

namespace fusor {

// Reads a zip file whose entries are stored, not compressed. No entry is larger
// than the file, so a small file cannot expand to a large one. Nothing is
// written to disk, so entry names are only keys. All functions throw `code`
// with one line if the file is damaged.
class ZipArchive {
 public:
  // A file in memory, which must outlive this object. `path` names it in
  // messages.
  ZipArchive(std::string path, std::span<const uint8_t> file, ErrorCode code);
  // A file, which must outlive this object.
  ZipArchive(const InputFile& file, ErrorCode code);

  // Names of all entries, in file order.
  const std::vector<std::string>& names() const { return names_; }
  bool Contains(const std::string& entry) const;
  // Returns an entry's bytes. Throws if there is none of that name, if it is
  // compressed or encrypted, or if its checksum is wrong.
  std::vector<uint8_t> Read(const std::string& entry) const;
  // Returns the place of an entry's bytes in the file. Reads them once, in
  // pieces, to compare their checksum. Throws like Read.
  struct Place {
    int64_t begin = 0;
    int64_t bytes = 0;
  };
  Place Find(const std::string& entry) const;
  // Reads the file's bytes from `begin` on. REQUIRES: they are within a place
  // that Find returned.
  void ReadAt(int64_t begin, std::span<uint8_t> bytes) const {
    source_.Read(begin, bytes);
  }

 private:
  explicit ZipArchive(ZipSource source);
  // Names an entry in messages.
  std::string Where(const std::string& entry) const;
  // Throws like Read.
  const ZipEntry& StoredEntry(const std::string& entry) const;

  ZipSource source_;
  std::vector<std::string> names_;
  std::map<std::string, ZipEntry> entries_;
};

}  // namespace fusor
