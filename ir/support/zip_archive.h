#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/zip_directory.h"

namespace fusor {

// Reads a zip file in memory whose entries are stored, not compressed. No entry
// is larger than the file, so a small file cannot expand to a large one.
// Nothing is written to disk, so entry names are only keys.
class ZipArchive {
 public:
  // `path` names the file in messages. `file` must outlive this object. All
  // functions throw `code` with one line if the file is damaged.
  ZipArchive(std::string path, std::span<const uint8_t> file, ErrorCode code);

  // Names of all entries, in file order.
  const std::vector<std::string>& names() const { return names_; }
  bool Contains(const std::string& entry) const;
  // Returns an entry's bytes. Throws if there is none of that name, if it is
  // compressed or encrypted, or if its checksum is wrong.
  std::vector<uint8_t> Read(const std::string& entry) const;

 private:
  ZipSource source_;
  std::vector<std::string> names_;
  std::map<std::string, ZipEntry> entries_;
};

}  // namespace fusor
