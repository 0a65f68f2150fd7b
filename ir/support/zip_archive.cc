#include "ir/support/zip_archive.h"

#include <string_view>
#include <utility>

namespace fusor {

ZipArchive::ZipArchive(std::string path, std::span<const uint8_t> file,
                       ErrorCode code)
    : source_(std::move(path), file, code) {
  if (!IsZip(file)) {
    ThrowError(code, fmt::format("{}: expected a zip file", source_.path()));
  }
  ReadZipDirectory(source_,
                   [this](std::string_view name, const ZipEntry& entry) {
                     names_.emplace_back(name);
                     entries_.emplace(name, entry);
                   });
}

bool ZipArchive::Contains(const std::string& entry) const {
  return entries_.contains(entry);
}

std::vector<uint8_t> ZipArchive::Read(const std::string& entry) const {
  const std::string where = fmt::format("{}: entry {}", source_.path(), entry);
  const auto found = entries_.find(entry);
  if (found == entries_.end()) {
    ThrowError(source_.code(),
               fmt::format("{}: expected in the archive, got none", where));
  }
  if (!found->second.is_plain()) {
    ThrowError(source_.code(),
               fmt::format("{}: expected stored bytes, got compressed or "
                           "encrypted ones",
                           where));
  }
  std::vector<uint8_t> bytes;
  ReadZipEntry(source_, found->second, where, bytes);
  return bytes;
}

}  // namespace fusor
