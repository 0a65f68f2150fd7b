#include "runtime/data/files/safetensors.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/hash.h"
#include "ir/support/str.h"

namespace fusor::runtime {
namespace {

using ir::DType;
using Json = nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
// The limit of the reference implementation.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct DTypeText {
  DType dtype;
  std::string_view text;
};

constexpr DTypeText kDTypes[] = {{DType::kF64, "F64"}, {DType::kF32, "F32"},
                                 {DType::kF16, "F16"}, {DType::kBF16, "BF16"},
                                 {DType::kI32, "I32"}, {DType::kI64, "I64"},
                                 {DType::kU8, "U8"},   {DType::kBool, "BOOL"}};

std::optional<DType> ParseDTypeText(std::string_view text) {
  for (const DTypeText& row : kDTypes) {
    if (row.text == text) return row.dtype;
  }
  return std::nullopt;
}

std::string_view TextOf(DType dtype) {
  for (const DTypeText& row : kDTypes) {
    if (row.dtype == dtype) return row.text;
  }
  FUSOR_ASSERT(false, "dtype {}", static_cast<int>(dtype));
}

// Returns text of a corrupt file in printable form, for error messages.
std::string Printable(std::string_view text) {
  std::string out;
  for (char c : text.substr(0, 80)) {
    out += std::isprint(static_cast<unsigned char>(c)) ? c : '?';
  }
  if (text.size() > 80) out += "..";
  return out;
}

// Returns the checksum of the metadata, which the tensors' bytes continue.
uint32_t MetadataSum(const Metadata& metadata) {
  uint32_t sum = 0;
  for (const auto& [key, value] : metadata) {
    if (!key.starts_with(kOwnPrefix) || key == kChecksum) continue;
    sum = Crc32c(fmt::format("{}={}\n", key, value), sum);
  }
  return sum;
}

std::string SumText(uint32_t sum) { return fmt::format("{:08x}", sum); }

std::vector<uint8_t> ReadRange(const InputFile& file, int64_t offset,
                               int64_t bytes) {
  std::vector<uint8_t> range(static_cast<size_t>(bytes));
  file.Read(offset, range);
  return range;
}

// Returns the CRC-32C of the bytes from `offset` on, which continue `sum`.
uint32_t SumOf(const InputFile& file, int64_t offset, uint32_t sum) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  std::vector<uint8_t> piece;
  for (; offset < file.size(); offset += kPiece) {
    piece.resize(static_cast<size_t>(std::min(kPiece, file.size() - offset)));
    file.Read(offset, piece);
    sum = Crc32c(AsText(piece), sum);
  }
  return sum;
}

// torch.save writes a zip archive; older versions write a bare pickle.
bool IsPickle(const InputFile& file) {
  constexpr std::string_view kZip = "PK\3\4";
  constexpr uint8_t kProtocol = 0x80;
  if (file.size() <= static_cast<int64_t>(kZip.size())) return false;
  const std::vector<uint8_t> head =
      ReadRange(file, 0, static_cast<int64_t>(kZip.size()));
  return AsText(head) == kZip ||
         (head[0] == kProtocol && head[1] >= 2 && head[1] <= 5 &&
          ReadRange(file, file.size() - 1, 1)[0] == '.');
}

// Reads one file. Messages start with its path.
class Reader {
 public:
  explicit Reader(std::shared_ptr<const InputFile> file)
      : file_(std::move(file)), path_(file_->path()) {}

  Safetensors Read() {
    const Json header = ParseHeader();
    Safetensors result;
    std::vector<Entry> entries;
    for (const auto& [name, value] : header.items()) {
      if (name == kMetadata) {
        result.metadata = ParseMetadata(value);
      } else {
        entries.push_back(ParseEntry(name, value));
      }
    }
    CheckOffsets(entries);
    CheckSum(result.metadata);
    for (Entry& entry : entries) {
      const auto begin = static_cast<int64_t>(data_begin_ + entry.begin);
      result.tensors.push_back(
          {std::move(entry.name), std::move(entry.type),
           [file = file_, begin](int64_t offset, std::span<uint8_t> bytes) {
             file->Read(begin + offset, bytes);
           }});
    }
    return result;
  }

 private:
  struct Entry {
    std::string name;
    ir::TensorType type;
    uint64_t begin, end;  // offsets in the data
  };

  Json ParseHeader() {
    FUSOR_CHECK(
        !IsPickle(*file_), kCheckpoint,
        "{}: expected safetensors, got a pickle of PyTorch (.pth, .pt), which "
        "can run any code: convert it with python3 -c \"import sys, torch, "
        "safetensors.torch as s; d = torch.load(sys.argv[1], 'cpu', "
        "weights_only=True); s.save_file({{k: v.contiguous() for k, v in "
        "d.get('state_dict', d).items()}}, sys.argv[2])\" {} OUT.safetensors",
        path_, path_);
    uint64_t length = 0;
    FUSOR_CHECK(Size() >= sizeof(length), kCheckpoint,
                "{}: {} bytes are too few for a safetensors file", path_,
                Size());
    std::memcpy(&length, ReadRange(*file_, 0, sizeof(length)).data(),
                sizeof(length));
    const uint64_t room = Size() - sizeof(length);
    FUSOR_CHECK(length <= std::min(room, kMaxHeaderBytes), kCheckpoint,
                "{}: header of {} bytes in a file of {}: truncated, or no "
                "safetensors file",
                path_, length, Size());
    data_begin_ = sizeof(length) + length;
    const std::vector<uint8_t> text =
        ReadRange(*file_, sizeof(length), static_cast<int64_t>(length));
    try {
      Json header = Json::parse(
          text.begin(), text.end(),
          [&](int depth, Json::parse_event_t event, const Json& parsed) {
            CheckEvent(depth, event, parsed);
            return true;
          });
      FUSOR_CHECK(header.is_object(), kCheckpoint,
                  "{}: the header is not a JSON object", path_);
      return header;
    } catch (const Json::parse_error& e) {
      ThrowError(
          ErrorCode::kCheckpoint,
          fmt::format("{}: the header is not JSON at byte {}", path_, e.byte));
    } catch (const Json::out_of_range&) {
      ThrowError(
          ErrorCode::kCheckpoint,
          fmt::format("{}: the header has a number beyond double's range",
                      path_));
    }
  }

  // Checks what the parsed document does not show, or must not be built at all.
  void CheckEvent(int depth, Json::parse_event_t event, const Json& parsed) {
    FUSOR_CHECK(depth <= 3, kCheckpoint, "{}: the header is nested too deep",
                path_);
    if (depth != 1 || event != Json::parse_event_t::key) return;
    const std::string& name = parsed.get_ref<const std::string&>();
    FUSOR_CHECK(names_.insert(name).second, kCheckpoint,
                "{}: tensor {} appears twice", path_, Printable(name));
  }

  Metadata ParseMetadata(const Json& value) const {
    Metadata metadata;
    FUSOR_CHECK(value.is_object(), kCheckpoint, "{}: {} is not a JSON object",
                path_, kMetadata);
    for (const auto& [key, text] : value.items()) {
      FUSOR_CHECK(text.is_string(), kCheckpoint, "{}: {} {} is not a string",
                  path_, kMetadata, Printable(key));
      metadata.emplace(key, text.get<std::string>());
    }
    return metadata;
  }

  Entry ParseEntry(const std::string& name, const Json& value) const {
    const std::string where =
        fmt::format("{}: tensor {}", path_, Printable(name));
    const auto field = [&](const char* key) -> const Json& {
      FUSOR_CHECK(value.is_object() && value.contains(key), kCheckpoint,
                  "{}: no field {}", where, key);
      return value.at(key);
    };
    const Json& text = field("dtype");
    FUSOR_CHECK(text.is_string(), kCheckpoint, "{}: dtype is not a string",
                where);
    const auto dtype = ParseDTypeText(text.get_ref<const std::string&>());
    FUSOR_CHECK(dtype.has_value(), kCheckpoint, "{}: unsupported dtype {}",
                where, Printable(text.get_ref<const std::string&>()));
    Entry entry{name, {*dtype, {}, {}}, 0, 0};
    for (uint64_t extent : Integers(field("shape"), where + ": shape")) {
      FUSOR_CHECK(extent >= 1, kCheckpoint, "{}: it has no elements", where);
      entry.type.shape.push_back(static_cast<int64_t>(extent));
    }
    const auto offsets =
        Integers(field("data_offsets"), where + ": data_offsets");
    FUSOR_CHECK(offsets.size() == 2 && offsets[0] <= offsets[1], kCheckpoint,
                "{}: data_offsets: expected [begin, end]", where);
    entry.begin = offsets[0];
    entry.end = offsets[1];
    const uint64_t room = Size() - data_begin_;
    FUSOR_CHECK(entry.end <= room, kCheckpoint,
                "{}: it ends at byte {} of {}: truncated?", where, entry.end,
                room);
    FUSOR_CHECK(HasSize(entry.type, entry.end - entry.begin), kCheckpoint,
                "{}: {} does not fit in {} bytes", where,
                ir::ToString(entry.type), entry.end - entry.begin);
    return entry;
  }

  static std::vector<uint64_t> Integers(const Json& value,
                                        const std::string& where) {
    std::vector<uint64_t> integers;
    FUSOR_CHECK(value.is_array(), kCheckpoint, "{}: expected a list", where);
    for (const Json& item : value) {
      FUSOR_CHECK(
          item.is_number_unsigned() && item.get<uint64_t>() <= INT64_MAX,
          kCheckpoint, "{}: expected integers of at least 0", where);
      integers.push_back(item.get<uint64_t>());
    }
    return integers;
  }

  // Whether a tensor of the type has `bytes`, checking for overflow.
  static bool HasSize(const ir::TensorType& type, uint64_t bytes) {
    uint64_t size = static_cast<uint64_t>(ir::DTypeSize(type.dtype));
    for (int64_t extent : type.shape) {
      if (__builtin_mul_overflow(size, static_cast<uint64_t>(extent), &size)) {
        return false;
      }
    }
    return size == bytes;
  }

  // Verifies the checksum, if present, and removes it from the metadata.
  void CheckSum(Metadata& metadata) const {
    const auto entry = metadata.extract(kChecksum);
    if (entry.empty()) return;
    const std::string sum = SumText(SumOf(
        *file_, static_cast<int64_t>(data_begin_), MetadataSum(metadata)));
    FUSOR_CHECK(sum == entry.mapped(), kCheckpoint,
                "{}: damaged: expected CRC-32C {}, got {}; a program that "
                "changed the tensors on purpose must drop {} from the metadata",
                path_, Printable(entry.mapped()), sum, kChecksum);
  }

  // Sorts by offset and rejects overlaps and gaps, as the format requires.
  void CheckOffsets(std::vector<Entry>& entries) const {
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return a.begin < b.begin; });
    uint64_t end = 0;
    for (const Entry& entry : entries) {
      FUSOR_CHECK(entry.begin == end, kCheckpoint,
                  "{}: tensor {}: {} begins at byte {}, the one before ends at "
                  "{}",
                  path_, Printable(entry.name),
                  entry.begin < end ? "overlap:" : "gap:", entry.begin, end);
      end = entry.end;
    }
    FUSOR_CHECK(end == Size() - data_begin_, kCheckpoint,
                "{}: {} bytes of data, but tensors end at {}", path_,
                Size() - data_begin_, end);
  }

  uint64_t Size() const { return static_cast<uint64_t>(file_->size()); }

  const std::shared_ptr<const InputFile> file_;
  const std::string& path_;
  uint64_t data_begin_ = 0;
  std::set<std::string> names_;
};

// Returns the length field and the header, padded to align the data.
std::string EncodeHeader(const nlohmann::ordered_json& header) {
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string encoded(sizeof(length), '\0');
  std::memcpy(encoded.data(), &length, sizeof(length));
  return encoded + text;
}

}  // namespace

const ir::TensorSource* Safetensors::Find(std::string_view name) const {
  const auto it =
      std::find_if(tensors.begin(), tensors.end(),
                   [&](const ir::TensorSource& t) { return t.name == name; });
  return it == tensors.end() ? nullptr : &*it;
}

bool IsSafetensors(std::span<const uint8_t> start) {
  uint64_t length = 0;
  if (start.size() <= sizeof(length) || start[sizeof(length)] != '{') {
    return false;
  }
  std::memcpy(&length, start.data(), sizeof(length));
  return length <= kMaxHeaderBytes;
}

Safetensors ReadSafetensors(const std::string& path) {
  return Reader(std::make_shared<InputFile>(path, ErrorCode::kCheckpoint))
      .Read();
}

Safetensors ReadSafetensors(const std::string& path, const FileSum& expected) {
  const auto file = std::make_shared<InputFile>(path, ErrorCode::kCheckpoint);
  FUSOR_CHECK(file->size() == expected.bytes, kCheckpoint,
              "{}: damaged: expected {} bytes, got {}", path, expected.bytes,
              file->size());
  const uint32_t crc = SumOf(*file, 0, 0);
  FUSOR_CHECK(crc == expected.crc32c, kCheckpoint,
              "{}: damaged: expected CRC-32C {:08x}, got {:08x}", path,
              expected.crc32c, crc);
  return Reader(file).Read();
}

FileSum WriteSafetensors(const std::string& path,
                         std::span<const ir::TensorSource> tensors,
                         const Metadata& metadata) {
  std::vector<const ir::TensorSource*> order;
  for (const ir::TensorSource& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(
      order.begin(), order.end(), [](const auto* a, const auto* b) {
        return ir::DTypeSize(a->type.dtype) > ir::DTypeSize(b->type.dtype);
      });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header[std::string(kMetadata)] = metadata;
  uint32_t sum = MetadataSum(metadata);
  int64_t offset = 0;
  for (const ir::TensorSource* tensor : order) {
    FUSOR_ASSERT(tensor->type.layout.is_row_major(), "{}: {}", tensor->name,
                 ToString(tensor->type));
    FUSOR_ASSERT(!header.contains(tensor->name) && tensor->name != kMetadata,
                 "two tensors named {}", tensor->name);
    const int64_t end = offset + tensor->type.num_bytes();
    header[tensor->name] = {{"dtype", TextOf(tensor->type.dtype)},
                            {"shape", tensor->type.shape},
                            {"data_offsets", {offset, end}}};
    ir::ForEachPiece(*tensor, [&](int64_t, std::span<const uint8_t> piece) {
      sum = Crc32c(AsText(piece), sum);
    });
    offset = end;
  }
  header[std::string(kMetadata)][kChecksum] = SumText(sum);
  const std::string encoded = EncodeHeader(header);
  FileSum written;
  const auto write = [&](const AppendBytes& append) {
    const auto add = [&](std::string_view bytes) {
      append(bytes);
      written.bytes += static_cast<int64_t>(bytes.size());
      written.crc32c = Crc32c(bytes, written.crc32c);
    };
    add(encoded);
    for (const ir::TensorSource* tensor : order) {
      ir::ForEachPiece(*tensor, [&](int64_t, std::span<const uint8_t> piece) {
        add(AsText(piece));
      });
    }
  };
  WriteFileDurably(path, write, ErrorCode::kCheckpoint);
  return written;
}

std::vector<ir::TensorSource> SourcesOf(std::span<const NamedTensor> tensors) {
  std::vector<ir::TensorSource> sources;
  for (const NamedTensor& tensor : tensors) {
    sources.push_back(ir::SourceOf(tensor.name, tensor.type, tensor.bytes));
  }
  return sources;
}

}  // namespace fusor::runtime
