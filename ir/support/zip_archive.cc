#include "ir/support/zip_archive.h"

#include <array>
#include <string_view>
#include <utility>

namespace fusor {

ZipArchive::ZipArchive(std::string path, std::span<const uint8_t> file,
                       ErrorCode code)
    : ZipArchive(ZipSource(std::move(path), file, code)) {}

ZipArchive::ZipArchive(const InputFile& file, ErrorCode code)
    : ZipArchive(ZipSource(file, code)) {}

ZipArchive::ZipArchive(ZipSource source) : source_(std::move(source)) {
  std::array<uint8_t, 4> start{};
  if (source_.size() >= static_cast<int64_t>(start.size())) {
    source_.Read(0, start);
  }
  if (!IsZip(start)) {
    ThrowError(source_.code(),
               fmt::format("{}: expected a zip file", source_.path()));
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

std::string ZipArchive::Where(const std::string& entry) const {
  return fmt::format("{}: entry {}", source_.path(), entry);
}

const ZipEntry& ZipArchive::StoredEntry(const std::string& entry) const {
  const auto found = entries_.find(entry);
  if (found == entries_.end()) {
    ThrowError(source_.code(),
               Where(entry) + ": expected in the archive, got none");
  }
  if (!found->second.is_plain()) {
    ThrowError(source_.code(), Where(entry) +
                                   ": expected stored bytes, got compressed or "
                                   "encrypted ones");
  }
  return found->second;
}

std::vector<uint8_t> ZipArchive::Read(const std::string& entry) const {
  std::vector<uint8_t> bytes;
  ReadZipEntry(source_, StoredEntry(entry), Where(entry), bytes);
  return bytes;
}

ZipArchive::Place ZipArchive::Find(const std::string& entry) const {
  const ZipEntry& found = StoredEntry(entry);
  return {FindStoredEntry(source_, found, Where(entry)),
          static_cast<int64_t>(found.size)};
}

}  // namespace fusor
