#include "runtime/data/datasets/recordio.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/little_endian.h"

namespace fusor::runtime {
namespace {

constexpr int64_t kPartHeaderBytes = 8;
constexpr size_t kImageHeaderBytes = 24;

// Kinds of parts.
enum Kind : uint32_t { kWhole = 0, kFirst = 1, kMiddle = 2, kLast = 3 };

struct Part {
  uint32_t kind = 0;
  int64_t length = 0;

  // Bytes up to the next part.
  int64_t stored() const { return kPartHeaderBytes + (length + 3) / 4 * 4; }
  bool begins() const { return kind == kWhole || kind == kFirst; }
  bool ends() const { return kind == kWhole || kind == kLast; }
};

// Returns nothing if there is no part.
std::optional<Part> ReadPart(std::span<const uint8_t> header) {
  if (LoadLittle<uint32_t>(header) != kRecordIoMagic) return std::nullopt;
  const auto word = LoadLittle<uint32_t>(header.subspan(4));
  const Part part{.kind = word >> 29, .length = word & ((1U << 29) - 1)};
  if (part.kind > kLast) return std::nullopt;
  return part;
}

// Returns the class of a packed image: its label, if that is a whole number.
// `header` is the start of the record, with labels[0] if there is one.
std::optional<int32_t> StoredLabel(std::span<const uint8_t> header) {
  const bool several = LoadLittle<uint32_t>(header) > 0;
  if (several && header.size() < kImageHeaderBytes + 4) return std::nullopt;
  const auto label = std::bit_cast<float>(LoadLittle<uint32_t>(
      header.subspan(several ? kImageHeaderBytes : size_t{4})));
  if (!(label >= 0 && label <= static_cast<float>(kMaxLabel)) ||
      std::trunc(label) != label) {
    return std::nullopt;
  }
  return static_cast<int32_t>(label);
}

// Reads the label of the record at `at`.
int32_t ReadLabel(const RecordShard& shard, size_t at) {
  std::array<uint8_t, kPartHeaderBytes + kImageHeaderBytes + 4> start;
  const int64_t size = shard.offsets[at + 1] - shard.offsets[at];
  const auto bytes = std::span(start).first(
      static_cast<size_t>(std::min(size, std::ssize(start))));
  shard.file->Read(shard.offsets[at], bytes);
  const std::optional<Part> part = ReadPart(bytes);
  // Read reports a record without a usable label. A first part that is shorter
  // than the header is possible, but no writer of images makes one.
  if (!part || !part->begins() ||
      part->length < static_cast<int64_t>(kImageHeaderBytes)) {
    return kUnknownLabel;
  }
  return StoredLabel(bytes.subspan(static_cast<size_t>(kPartHeaderBytes)))
      .value_or(kUnknownLabel);
}

std::vector<int64_t> OffsetsOf(const InputFile& file) {
  std::vector<int64_t> offsets;
  bool within = false;  // a record
  std::array<uint8_t, kPartHeaderBytes> header;
  int64_t at = 0;
  while (at < file.size()) {
    const auto name = [&] {
      return fmt::format("{}:{}", file.path(),
                         std::ssize(offsets) - (within ? 1 : 0));
    };
    FUSOR_CHECK(file.size() - at >= kPartHeaderBytes, kData,
                "{}: the file ends within this record", name());
    file.Read(at, header);
    const std::optional<Part> part = ReadPart(header);
    FUSOR_CHECK(part && part->begins() != within, kData,
                "{}: not RecordIO: expected a {} of a record at {}", name(),
                within ? "further part" : "first part", at);
    FUSOR_CHECK(part->stored() <= file.size() - at, kData,
                "{}: the file ends within this record: expected {} bytes, got "
                "{}",
                name(), part->stored(), file.size() - at);
    if (!within) offsets.push_back(at);
    within = !part->ends();
    at += part->stored();
  }
  FUSOR_CHECK(!within, kData, "{}:{}: the file ends within this record",
              file.path(), offsets.size() - 1);
  offsets.push_back(at);
  return offsets;
}

// An index lists records in any order, so they are sorted by position.
std::vector<int64_t> OffsetsFrom(const std::string& index,
                                 const InputFile& file) {
  std::vector<int64_t> offsets;
  for (const auto& [key, offset] : ReadIndex(index)) {
    FUSOR_CHECK(offset % 4 == 0 && offset <= file.size() - kPartHeaderBytes,
                kData,
                "index {}: line {}: expected the position of a record within "
                "the {} bytes of {}, got {}: make the index anew or remove it",
                index, offsets.size() + 1, file.size(), file.path(), offset);
    offsets.push_back(offset);
  }
  std::sort(offsets.begin(), offsets.end());
  const auto twice = std::adjacent_find(offsets.begin(), offsets.end());
  FUSOR_CHECK(twice == offsets.end(), kData,
              "index {}: expected distinct positions, got {} twice", index,
              twice == offsets.end() ? 0 : *twice);
  FUSOR_CHECK(!offsets.empty() && offsets.front() == 0, kData,
              "index {}: expected a record at 0, got none: make the index anew "
              "or remove it",
              index);
  // A record must begin at each of a few positions, and the last one must end
  // with the file. Read checks the others.
  constexpr size_t kChecks = 16;
  const size_t step = std::max<size_t>(offsets.size() / kChecks, 1);
  std::array<uint8_t, kPartHeaderBytes> header;
  const auto check = [&](int64_t offset) {
    file.Read(offset, header);
    const std::optional<Part> part = ReadPart(header);
    FUSOR_CHECK(part && part->begins(), kData,
                "index {}: expected a record of {} at {}, got other bytes: "
                "make the index anew or remove it",
                index, file.path(), offset);
    return *part;
  };
  for (size_t i = 0; i < offsets.size(); i += step) check(offsets[i]);
  const Part last = check(offsets.back());
  FUSOR_CHECK(
      last.kind != kWhole || last.stored() == file.size() - offsets.back(),
      kData,
      "index {}: expected the last record at the end of {}, got one at "
      "{}: make the index anew or remove it",
      index, file.path(), offsets.back());
  offsets.push_back(file.size());
  return offsets;
}

RecordShard Open(const std::string& path, bool labels) {
  RecordShard shard;
  shard.file = std::make_unique<InputFile>(path, ErrorCode::kData);
  const std::string index = FindIndex(path);
  shard.offsets =
      index.empty() ? OffsetsOf(*shard.file) : OffsetsFrom(index, *shard.file);
  if (!labels) return shard;
  shard.labels.resize(static_cast<size_t>(shard.size()));
  for (size_t i = 0; i < shard.labels.size(); ++i) {
    shard.labels[i] = ReadLabel(shard, i);
  }
  return shard;
}

// Joins the parts of a record within its storage. Returns nothing unless they
// fill it.
std::optional<std::span<uint8_t>> Join(std::span<uint8_t> stored) {
  size_t size = 0;  // of the joined data at the start of `stored`
  size_t at = 0;
  for (bool within = false;; within = true) {
    if (stored.size() - at < static_cast<size_t>(kPartHeaderBytes)) {
      return std::nullopt;
    }
    const std::optional<Part> part = ReadPart(stored.subspan(at));
    if (!part || part->begins() == within ||
        part->stored() > std::ssize(stored) - static_cast<int64_t>(at)) {
      return std::nullopt;
    }
    if (within) {
      // The header of this part, which has been read, is 8 bytes long.
      for (size_t i = 0; i < sizeof(kRecordIoMagic); ++i) {
        stored[size++] = static_cast<uint8_t>(kRecordIoMagic >> (8 * i));
      }
    }
    const auto length = static_cast<size_t>(part->length);
    std::memmove(stored.data() + size,
                 stored.data() + at + static_cast<size_t>(kPartHeaderBytes),
                 length);
    size += length;
    at += static_cast<size_t>(part->stored());
    if (part->ends()) break;
  }
  if (at != stored.size()) return std::nullopt;
  return stored.first(size);
}

}  // namespace

bool IsRecordIo(std::span<const uint8_t> start) {
  if (start.size() < static_cast<size_t>(kPartHeaderBytes)) return false;
  const std::optional<Part> part = ReadPart(start);
  return part && part->begins();
}

RecordIoSet::RecordIoSet(std::string path,
                         const std::vector<std::string>& files,
                         const RecordOptions& options)
    : RecordSet("RecordIO set", std::move(path),
                OpenShards(files, options.read_labels(), Open), options) {}

Sample RecordIoSet::Read(int64_t index, std::vector<uint8_t>& storage) const {
  ReadRecord(index, storage);
  const std::optional<std::span<uint8_t>> data = Join(storage);
  FUSOR_CHECK(data, kData,
              "{}: expected a RecordIO record of {} bytes, got other bytes",
              Name(index), storage.size());
  const uint64_t labels =
      data->size() < kImageHeaderBytes ? 0 : LoadLittle<uint32_t>(*data);
  FUSOR_CHECK(data->size() >= kImageHeaderBytes + labels * 4, kData,
              "{}: expected the header and labels of an image, got {} bytes",
              Name(index), data->size());
  const std::optional<int32_t> label = StoredLabel(*data);
  FUSOR_CHECK(label, kData, "{}: expected a label that is a class, got none",
              Name(index));
  return {data->subspan(kImageHeaderBytes + labels * 4),
          ClassOf(*label, index)};
}

}  // namespace fusor::runtime
