#include "runtime/data/datasets/packed_images.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/little_endian.h"
#include "ir/support/str.h"

namespace fusor::runtime {
namespace {

constexpr size_t kHeaderBytes = 16;
constexpr size_t kRowBytes = 24;
constexpr size_t kTrailerBytes = 48;
constexpr size_t kCheckedBytes = 36;  // of the trailer

// The numbers of a trailer.
struct Trailer {
  uint64_t images = 0;
  uint64_t index = 0;
  uint64_t name_bytes = 0;
  uint32_t classes = 0;
  uint32_t crc = 0;
};

// Reads the trailer of a file. Throws kData unless it suits the file's size.
Trailer ReadTrailer(std::span<const uint8_t> file, const std::string& path) {
  FUSOR_CHECK(file.size() >= kHeaderBytes + kTrailerBytes &&
                  AsText(file.last(kPackedEnd.size())) == kPackedEnd,
              kData,
              "{}: expected a whole shard of fusor's, got {} bytes without an "
              "end",
              path, file.size());
  const auto version = LoadLittle<uint32_t>(file.subspan(kPackedStart.size()));
  FUSOR_CHECK(version == kPackedVersion, kData,
              "{}: expected version {} of fusor's shards, got {}", path,
              kPackedVersion, version);
  const auto bytes = file.last(kTrailerBytes);
  const Trailer trailer{.images = LoadLittle<uint64_t>(bytes),
                        .index = LoadLittle<uint64_t>(bytes.subspan(8)),
                        .name_bytes = LoadLittle<uint64_t>(bytes.subspan(16)),
                        .classes = LoadLittle<uint32_t>(bytes.subspan(24)),
                        .crc = LoadLittle<uint32_t>(bytes.subspan(28))};
  FUSOR_CHECK(LoadLittle<uint32_t>(bytes.subspan(kCheckedBytes)) ==
                  Crc32c(AsText(bytes.first(kCheckedBytes))),
              kData, "{}: the shard is damaged: wrong checksum of its end",
              path);
  const uint64_t end = file.size() - kTrailerBytes;
  FUSOR_CHECK(trailer.images > 0, kData, "{}: the file has no images", path);
  FUSOR_CHECK(trailer.index >= kHeaderBytes && trailer.index <= end &&
                  trailer.images <= (end - trailer.index) / kRowBytes &&
                  trailer.name_bytes ==
                      end - trailer.index - trailer.images * kRowBytes,
              kData,
              "{}: the shard is damaged: expected {} images and their index in "
              "{} bytes",
              path, trailer.images, file.size());
  return trailer;
}

// Splits the names of classes. Returns fewer than `count` if they are damaged.
std::vector<std::string> SplitNames(std::span<const uint8_t> bytes,
                                    uint32_t count) {
  std::vector<std::string> names;
  while (names.size() < count && bytes.size() >= 4) {
    const auto size = LoadLittle<uint32_t>(bytes);
    bytes = bytes.subspan(4);
    if (size > bytes.size()) break;
    names.emplace_back(AsText(bytes.first(size)));
    bytes = bytes.subspan(size);
  }
  return names;
}

}  // namespace

bool IsPackedImages(std::span<const uint8_t> start) {
  return AsText(start).starts_with(kPackedStart);
}

PackedImages::PackedImages(std::string path,
                           const std::vector<std::string>& files)
    : ImageSet("fusor's shards", std::move(path)) {
  for (const std::string& file : files) Open(file);
}

void PackedImages::Open(const std::string& path) {
  auto mapped = std::make_unique<MappedFile>(path, ErrorCode::kData);
  const std::span<const uint8_t> file = mapped->bytes();
  const Trailer trailer = ReadTrailer(file, path);
  const size_t rows_bytes = trailer.images * kRowBytes;
  mapped->Load(trailer.index, file.size() - trailer.index);
  const auto rows = file.subspan(trailer.index, rows_bytes);
  const auto names =
      file.subspan(trailer.index + rows_bytes, trailer.name_bytes);
  FUSOR_CHECK(
      Crc32c(AsText(file.subspan(
          trailer.index, rows_bytes + trailer.name_bytes))) == trailer.crc,
      kData, "{}: the shard is damaged: wrong checksum of its index", path);
  for (size_t at = 0; at < rows.size(); at += kRowBytes) {
    const auto begin = LoadLittle<uint64_t>(rows.subspan(at));
    const auto size = LoadLittle<uint64_t>(rows.subspan(at + 8));
    const auto label = LoadLittle<uint32_t>(rows.subspan(at + 20));
    FUSOR_CHECK(begin <= trailer.index && size <= trailer.index - begin &&
                    label < trailer.classes,
                kData,
                "{}:{}: the index is damaged: {} bytes at {}, label {} of {}",
                path, at / kRowBytes, size, begin, label, trailer.classes);
  }
  std::vector<std::string> classes = SplitNames(names, trailer.classes);
  FUSOR_CHECK(classes.size() == trailer.classes, kData,
              "{}: expected the names of {} classes, got {}", path,
              trailer.classes, classes.size());
  if (files_.empty()) {
    num_classes_ = static_cast<int>(classes.size());
    class_names_ = std::move(classes);
  } else {
    FUSOR_CHECK(classes == class_names_, kData,
                "{}: expected the classes of {}, got others", path,
                files_.front()->path());
  }
  first_.push_back(first_.back() + static_cast<int64_t>(trailer.images));
  indices_.emplace_back(rows.begin(), rows.end());
  files_.push_back(std::move(mapped));
}

PackedImages::Entry PackedImages::Find(int64_t index) const {
  FUSOR_ASSERT(index >= 0 && index < size(), "sample {} of {}", index, size());
  const auto shard = static_cast<size_t>(
      std::upper_bound(first_.begin(), first_.end(), index) - first_.begin() -
      1);
  const int64_t number = index - first_[shard];
  return {files_[shard].get(),
          std::span(indices_[shard])
              .subspan(static_cast<size_t>(number) * kRowBytes, kRowBytes),
          number};
}

int32_t PackedImages::Label(int64_t index) const {
  return static_cast<int32_t>(
      LoadLittle<uint32_t>(Find(index).row.subspan(20)));
}

std::string PackedImages::Name(int64_t index) const {
  const Entry entry = Find(index);
  return fmt::format("{}:{}", entry.file->path(), entry.number);
}

Sample PackedImages::Read(int64_t index,
                          std::vector<uint8_t>& /*storage*/) const {
  const Entry entry = Find(index);
  const auto begin = static_cast<size_t>(LoadLittle<uint64_t>(entry.row));
  const auto size =
      static_cast<size_t>(LoadLittle<uint64_t>(entry.row.subspan(8)));
  // Bounds the memory that counts as this process's.
  constexpr size_t kMappedBytes = 64 << 20;
  if (loaded_bytes_.fetch_add(size) + size > kMappedBytes) {
    loaded_bytes_ = 0;
    for (const auto& file : files_) file->Release();
  }
  entry.file->Load(begin, size);
  const auto bytes = entry.file->bytes().subspan(begin, size);
  const auto stored = LoadLittle<uint32_t>(entry.row.subspan(16));
  const uint32_t computed = Crc32c(AsText(bytes));
  FUSOR_CHECK(stored == computed, kData,
              "{}: the image is damaged: expected checksum {:08x}, got {:08x}",
              Name(index), stored, computed);
  return {bytes,
          static_cast<int32_t>(LoadLittle<uint32_t>(entry.row.subspan(20)))};
}

uint64_t PackedImages::Fingerprint() const {
  uint64_t hash = kHashSeed;
  for (const std::span<const uint8_t> rows : indices_) {
    for (size_t at = 0; at < rows.size(); at += kRowBytes) {
      // Sizes, checksums and labels, without positions.
      hash = HashBytes(AsText(rows.subspan(at + 8, kRowBytes - 8)), hash);
    }
  }
  for (const std::string& name : class_names_) {
    hash = HashCombine(HashBytes(name, hash), name.size());
  }
  return hash;
}

std::string PackedImages::Description() const {
  return fmt::format("{} images in {} files {:016x}", size(), files_.size(),
                     Fingerprint());
}

}  // namespace fusor::runtime
