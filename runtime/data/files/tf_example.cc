#include "runtime/data/files/tf_example.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

namespace fusor::runtime {
namespace {

// Protobuf's wire format.
enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

constexpr uint64_t kMaxVarintBytes = 10;
constexpr uint64_t kMaxKeyBytes = 64;

// A field of a message.
struct Field {
  uint32_t number = 0;
  uint32_t wire = 0;
  uint64_t value = 0;  // of a varint
  ByteRange range;     // of kBytes
};

// Reads the fields of a message that is a range of `bytes`.
class FieldReader {
 public:
  FieldReader(ByteSource& bytes, ByteRange range)
      : bytes_(bytes), at_(range.begin), end_(range.begin + range.size) {}

  bool AtEnd() const { return at_ == end_; }

  // Returns nothing if the next field is malformed.
  std::optional<Field> Next() {
    const std::optional<uint64_t> tag = Varint();
    if (!tag) return std::nullopt;
    Field field{.number = static_cast<uint32_t>(*tag >> 3),
                .wire = static_cast<uint32_t>(*tag & 7)};
    uint64_t size = 0;
    if (field.wire == kVarint || field.wire == kBytes) {
      const std::optional<uint64_t> value = Varint();
      if (!value) return std::nullopt;
      field.value = *value;
      if (field.wire == kBytes) size = *value;
    } else if (field.wire == kFixed64 || field.wire == kFixed32) {
      size = field.wire == kFixed64 ? 8 : 4;
    } else {
      return std::nullopt;
    }
    if (size > end_ - at_) return std::nullopt;
    field.range = {at_, size};
    at_ += size;
    return field;
  }

  std::optional<uint64_t> Varint() {
    const uint64_t most = std::min(kMaxVarintBytes, end_ - at_);
    const std::span<const uint8_t> bytes = bytes_.Read(at_, most);
    uint64_t value = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      value |= uint64_t{bytes[i] & 0x7fU} << (7 * i);
      if (bytes[i] < 0x80) {
        at_ += i + 1;
        return value;
      }
    }
    return std::nullopt;
  }

 private:
  ByteSource& bytes_;
  uint64_t at_;
  uint64_t end_;
};

// Finds the last kBytes field of this number, as protobuf does for a field that
// is not repeated. Returns false if the message is malformed.
bool FindBytes(ByteSource& bytes, ByteRange message, uint32_t number,
               std::optional<ByteRange>& found) {
  FieldReader fields(bytes, message);
  while (!fields.AtEnd()) {
    const std::optional<Field> field = fields.Next();
    if (!field) return false;
    if (field->number == number && field->wire == kBytes) found = field->range;
  }
  return true;
}

// Finds the first value of an Int64List, packed or not.
bool FirstInteger(ByteSource& bytes, ByteRange list,
                  std::optional<int64_t>& found) {
  FieldReader fields(bytes, list);
  while (!fields.AtEnd() && !found) {
    const std::optional<Field> field = fields.Next();
    if (!field) return false;
    if (field->number != 1) continue;
    if (field->wire == kVarint) {
      found = static_cast<int64_t>(field->value);
    } else if (field->wire == kBytes && field->range.size > 0) {
      const std::optional<uint64_t> value =
          FieldReader(bytes, field->range).Varint();
      if (!value) return false;
      found = static_cast<int64_t>(*value);
    }
  }
  return true;
}

// Finds the first value of a feature's BytesList or Int64List.
bool ReadFeature(ByteSource& bytes, ByteRange feature,
                 std::optional<ByteRange>* text,
                 std::optional<int64_t>* number) {
  constexpr uint32_t kBytesList = 1;
  constexpr uint32_t kInt64List = 3;
  std::optional<ByteRange> list;
  if (!FindBytes(bytes, feature, text != nullptr ? kBytesList : kInt64List,
                 list)) {
    return false;
  }
  if (!list) return true;
  return text != nullptr ? FindBytes(bytes, *list, 1, *text)
                         : FirstInteger(bytes, *list, *number);
}

// Reads an entry of the features' map.
bool ReadEntry(ByteSource& bytes, ByteRange entry, ImageExample& example) {
  std::optional<ByteRange> key;
  std::optional<ByteRange> feature;
  if (!FindBytes(bytes, entry, 1, key) ||
      !FindBytes(bytes, entry, 2, feature)) {
    return false;
  }
  if (!key || !feature || key->size > kMaxKeyBytes) return true;
  const std::span<const uint8_t> text = bytes.Read(key->begin, key->size);
  const std::string name(text.begin(), text.end());
  if (name == "image/encoded" || name == "image") {
    return ReadFeature(bytes, *feature, &example.image, nullptr);
  }
  if (name == "image/class/label" || name == "label") {
    return ReadFeature(bytes, *feature, nullptr, &example.label);
  }
  if (name == "image/class/synset") {
    return ReadFeature(bytes, *feature, &example.synset, nullptr);
  }
  if (name == "image/class/text") {
    return ReadFeature(bytes, *feature, &example.text, nullptr);
  }
  return true;
}

}  // namespace

std::optional<ImageExample> ParseExample(ByteSource& bytes) {
  ImageExample example;
  FieldReader fields(bytes, {0, bytes.size()});
  while (!fields.AtEnd()) {
    const std::optional<Field> features = fields.Next();
    if (!features) return std::nullopt;
    if (features->number != 1 || features->wire != kBytes) continue;
    FieldReader entries(bytes, features->range);
    while (!entries.AtEnd()) {
      const std::optional<Field> entry = entries.Next();
      if (!entry) return std::nullopt;
      if (entry->number == 1 && entry->wire == kBytes &&
          !ReadEntry(bytes, entry->range, example)) {
        return std::nullopt;
      }
    }
  }
  return example;
}

}  // namespace fusor::runtime
