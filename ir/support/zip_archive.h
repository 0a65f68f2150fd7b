#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/support/error.h"

struct zip;  // libzip's archive

namespace fusor {

// Reads a zip file in memory whose entries are stored, not compressed. No entry
// is larger than the file, so a small file cannot expand to a large one.
// Nothing is written to disk, so entry names are only keys.
class ZipArchive {
 public:
  // `path` names the file in messages. `file` must outlive this object. All
  // functions throw `code` with one line if the file is damaged.
  ZipArchive(std::string path, std::span<const uint8_t> file, ErrorCode code);
  ~ZipArchive();
  ZipArchive(const ZipArchive&) = delete;
  ZipArchive& operator=(const ZipArchive&) = delete;

  // Names of all entries, in file order.
  const std::vector<std::string>& names() const { return names_; }
  bool Contains(const std::string& entry) const;
  // Returns an entry's bytes. Throws if there is none of that name, if it is
  // compressed or encrypted, or if its checksum is wrong.
  std::vector<uint8_t> Read(const std::string& entry) const;

 private:
  struct Closer {
    void operator()(zip* archive) const;
  };
  [[noreturn]] void Throw(const std::string& message) const;

  std::string path_;
  uint64_t file_bytes_;
  ErrorCode code_;
  std::unique_ptr<zip, Closer> archive_;
  std::vector<std::string> names_;
};

}  // namespace fusor
