#include "runtime/data/datasets/tfrecord.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/little_endian.h"
#include "ir/support/str.h"
#include "runtime/data/files/byte_source.h"
#include "runtime/data/files/tf_example.h"

namespace fusor::runtime {
namespace {

constexpr int64_t kHeaderBytes = 12;
constexpr int64_t kFramingBytes = kHeaderBytes + 4;

// Returns the length in a record's header. Throws kData if its checksum is
// wrong.
uint64_t ReadLength(std::span<const uint8_t> header, const std::string& name) {
  const auto stored = LoadLittle<uint32_t>(header.subspan(8));
  const uint32_t computed = MaskedCrc32c(AsText(header.first(8)));
  FUSOR_CHECK(stored == computed, kData,
              "{}: not a TFRecord: expected a length with checksum {:08x}, got "
              "{:08x}",
              name, stored, computed);
  return LoadLittle<uint64_t>(header);
}

std::vector<int64_t> OffsetsOf(const InputFile& file) {
  std::vector<int64_t> offsets = {0};
  std::array<uint8_t, kHeaderBytes> header;
  while (offsets.back() < file.size()) {
    const int64_t at = offsets.back();
    const auto name = [&] {
      return fmt::format("{}:{}", file.path(), offsets.size() - 1);
    };
    const int64_t left = file.size() - at - kFramingBytes;
    FUSOR_CHECK(left >= 0, kData, "{}: the file ends within this record",
                name());
    file.Read(at, header);
    const uint64_t length = ReadLength(header, name());
    FUSOR_CHECK(length <= static_cast<uint64_t>(left), kData,
                "{}: the file ends within this record: expected {} bytes, got "
                "{}",
                name(), length, left);
    offsets.push_back(at + static_cast<int64_t>(length) + kFramingBytes);
  }
  return offsets;
}

// The lines of an index must cover the file.
std::vector<int64_t> OffsetsFrom(const std::string& index,
                                 const InputFile& file) {
  std::vector<int64_t> offsets = {0};
  for (const auto& [offset, size] : ReadIndex(index)) {
    FUSOR_CHECK(offset == offsets.back() && size >= kFramingBytes &&
                    size <= file.size() - offset,
                kData,
                "index {}: line {}: expected a record at {} within the {} "
                "bytes of {}, got {} bytes at {}: make the index anew or "
                "remove it",
                index, offsets.size(), offsets.back(), file.size(), file.path(),
                size, offset);
    offsets.push_back(offset + size);
  }
  FUSOR_CHECK(offsets.back() == file.size(), kData,
              "index {}: expected records up to the {} bytes of {}, got {}: "
              "make the index anew or remove it",
              index, file.size(), file.path(), offsets.back());
  return offsets;
}

// Reads label and class name of the record at `at`.
void ReadLabel(RecordShard& shard, size_t at, bool first) {
  int32_t& label = shard.labels[at];
  label = kUnknownLabel;
  constexpr uint64_t kPieceBytes = 512;
  const auto begin = static_cast<uint64_t>(shard.offsets[at]);
  const auto end = static_cast<uint64_t>(shard.offsets[at + 1]);
  FileSource bytes(
      *shard.file,
      {.begin = begin + kHeaderBytes, .size = end - begin - kFramingBytes},
      kPieceBytes);
  const std::optional<ImageExample> example = ParseExample(bytes);
  // Read reports a record without a usable label.
  if (!example || !example->label || *example->label < 0) return;
  FUSOR_CHECK(*example->label <= kMaxLabel, kData,
              "{}:{}: expected a label of at most {}, got {}",
              shard.file->path(), at, kMaxLabel, *example->label);
  label = static_cast<int32_t>(*example->label);
  const std::optional<ByteRange>& name =
      example->synset ? example->synset : example->text;
  if (first) shard.first_label = name ? 1 : 0;
  constexpr uint64_t kMaxNameBytes = 256;
  if (name && name->size <= kMaxNameBytes && !shard.names.contains(label)) {
    shard.names[label] = AsText(bytes.Read(name->begin, name->size));
  }
}

RecordShard Open(const std::string& path, bool labels) {
  RecordShard shard;
  shard.file = std::make_unique<InputFile>(path, ErrorCode::kData);
  const std::string index = FindIndex(path);
  shard.offsets =
      index.empty() ? OffsetsOf(*shard.file) : OffsetsFrom(index, *shard.file);
  const auto count = static_cast<size_t>(shard.size());
  shard.labels.resize(labels ? count : std::min<size_t>(count, 1));
  for (size_t i = 0; i < shard.labels.size(); ++i) {
    ReadLabel(shard, i, i == 0);
  }
  if (!labels) shard.labels.clear();
  return shard;
}

}  // namespace

uint32_t MaskedCrc32c(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

bool IsTfRecord(std::span<const uint8_t> start) {
  return start.size() >= static_cast<size_t>(kHeaderBytes) &&
         LoadLittle<uint32_t>(start.subspan(8)) ==
             MaskedCrc32c(AsText(start.first(8)));
}

TfRecordSet::TfRecordSet(std::string path,
                         const std::vector<std::string>& files,
                         const RecordOptions& options)
    : RecordSet("TFRecord set", std::move(path),
                OpenShards(files, options.read_labels(), Open), options) {}

Sample TfRecordSet::Read(int64_t index, std::vector<uint8_t>& storage) const {
  const std::span<const uint8_t> record = ReadRecord(index, storage);
  const size_t length = record.size() - static_cast<size_t>(kFramingBytes);
  const uint64_t stored = ReadLength(record, Name(index));
  FUSOR_CHECK(stored == length, kData,
              "{}: expected a record of {} bytes, as in the index, got {}",
              Name(index), length, stored);
  const auto data = record.subspan(static_cast<size_t>(kHeaderBytes), length);
  const auto expected = LoadLittle<uint32_t>(record.last(4));
  const uint32_t computed = MaskedCrc32c(AsText(data));
  FUSOR_CHECK(expected == computed, kData,
              "{}: the record is damaged: expected checksum {:08x}, got {:08x}",
              Name(index), expected, computed);
  MemorySource bytes(data);
  const std::optional<ImageExample> example = ParseExample(bytes);
  FUSOR_CHECK(example && example->image && example->label, kData,
              "{}: expected a tf.Example with image/encoded and "
              "image/class/label, got {}",
              Name(index),
              !example          ? "other bytes"
              : !example->image ? "no image/encoded"
                                : "no image/class/label");
  return {data.subspan(example->image->begin, example->image->size),
          ClassOf(*example->label, index)};
}

}  // namespace fusor::runtime
