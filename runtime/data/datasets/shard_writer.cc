#include "runtime/data/datasets/shard_writer.h"

#include <bit>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/little_endian.h"
#include "ir/support/str.h"
#include "runtime/data/datasets/packed_images.h"
#include "runtime/data/datasets/recordio.h"
#include "runtime/data/datasets/tfrecord.h"

namespace fusor::runtime {
namespace {

// Appends a protobuf field of bytes.
void AppendField(int number, std::string_view bytes, std::string& out) {
  out += static_cast<char>(number << 3 | 2);
  uint64_t size = bytes.size();
  for (; size >= 0x80; size >>= 7) {
    out += static_cast<char>((size & 0x7f) | 0x80);
  }
  out += static_cast<char>(size);
  out += bytes;
}

std::string Field(int number, std::string_view bytes) {
  std::string out;
  AppendField(number, bytes, out);
  return out;
}

std::string Varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) {
    out += static_cast<char>((value & 0x7f) | 0x80);
  }
  out += static_cast<char>(value);
  return out;
}

class TfRecordWriter : public ShardWriter {
 public:
  TfRecordWriter(AppendBytes append,
                 const std::vector<std::string>& class_names)
      : ShardWriter(std::move(append)), class_names_(class_names) {}

  void Add(const OutputSample& sample) override {
    std::string features;
    // A map entry: key 1, value 2. A feature: bytes 1, integers 3.
    const auto add = [&](std::string_view key, int kind,
                         std::string_view value) {
      const std::string list = Field(1, value);
      AppendField(1, Field(1, key) + Field(2, Field(kind, list)), features);
    };
    add("image/class/label", 3,
        Varint(static_cast<uint64_t>(sample.label) + 1));
    add("image/class/text", 1, class_names_[static_cast<size_t>(sample.label)]);
    add("image/encoded", 1, AsText(sample.image));
    const std::string example = Field(1, features);
    std::string length;
    AppendLittle<uint64_t>(example.size(), length);
    std::string record = length;
    AppendLittle(MaskedCrc32c(length), record);
    record += example;
    AppendLittle(MaskedCrc32c(example), record);
    index_ += fmt::format("{} {}\n", position(), record.size());
    Append(record);
  }

 private:
  const std::vector<std::string>& class_names_;
};

class RecordIoWriter : public ShardWriter {
 public:
  using ShardWriter::ShardWriter;

  void Add(const OutputSample& sample) override {
    std::string data;
    AppendLittle<uint32_t>(0, data);  // further labels
    AppendLittle(std::bit_cast<uint32_t>(static_cast<float>(sample.label)),
                 data);
    AppendLittle(static_cast<uint64_t>(sample.index), data);
    AppendLittle<uint64_t>(0, data);  // the second id
    data += AsText(sample.image);
    index_ += fmt::format("{}\t{}\n", sample.index, position());
    std::string magic;
    AppendLittle(kRecordIoMagic, magic);
    // A part ends before each aligned magic in the data.
    size_t begin = 0;
    for (size_t at = 0; at + magic.size() <= data.size(); at += magic.size()) {
      if (data.compare(at, magic.size(), magic) != 0) continue;
      AppendPart(begin == 0 ? 1 : 2, {data.data() + begin, at - begin});
      begin = at + magic.size();
    }
    AppendPart(begin == 0 ? 0 : 3, std::string_view(data).substr(begin));
  }

 private:
  void AppendPart(uint32_t kind, std::string_view bytes) {
    std::string part;
    AppendLittle(kRecordIoMagic, part);
    AppendLittle(kind << 29 | static_cast<uint32_t>(bytes.size()), part);
    part += bytes;
    part.resize((part.size() + 3) / 4 * 4);
    Append(part);
  }
};

// Returns the extension for an encoded image.
std::string_view ExtensionOf(std::string_view image) {
  struct Known {
    std::string_view start;
    std::string_view extension;
  };
  constexpr Known kKnown[] = {{"\x89PNG", "png"},
                              {"P6", "ppm"},
                              {"RIFF", "webp"},
                              {"GIF8", "gif"},
                              {"BM", "bmp"}};
  for (const Known& known : kKnown) {
    if (image.starts_with(known.start)) return known.extension;
  }
  return "jpg";
}

class WebDatasetWriter : public ShardWriter {
 public:
  using ShardWriter::ShardWriter;

  void Add(const OutputSample& sample) override {
    const std::string_view image = AsText(sample.image);
    AppendFile(fmt::format("{:09}.cls", sample.index),
               fmt::format("{}", sample.label));
    AppendFile(fmt::format("{:09}.{}", sample.index, ExtensionOf(image)),
               image);
  }

  void Finish() override { Append(std::string(2 * kBlock, '\0')); }

 private:
  static constexpr size_t kBlock = 512;

  // Appends a file with a header of POSIX ustar.
  void AppendFile(const std::string& name, std::string_view bytes) {
    std::string header(kBlock, '\0');
    const auto put = [&](size_t at, std::string_view text) {
      header.replace(at, text.size(), text);
    };
    put(0, name);
    put(100, "0000644");
    put(108, "0000000");
    put(116, "0000000");
    put(124, fmt::format("{:011o}", bytes.size()));
    put(136, "00000000000");
    put(148, "        ");  // of the sum itself
    put(156, "0");
    put(257, std::string_view("ustar\0"
                              "00",
                              8));
    uint32_t sum = 0;
    for (const char c : header) sum += static_cast<uint8_t>(c);
    put(148, fmt::format("{:06o}", sum));
    header[154] = '\0';
    Append(header);
    Append(bytes);
    Append(std::string((kBlock - bytes.size() % kBlock) % kBlock, '\0'));
  }
};

// Writes PackedImages.
class PackedWriter : public ShardWriter {
 public:
  PackedWriter(AppendBytes append, const std::vector<std::string>& class_names)
      : ShardWriter(std::move(append)), classes_(class_names.size()) {
    std::string header(kPackedStart);
    AppendLittle(kPackedVersion, header);
    AppendLittle<uint32_t>(0, header);
    Append(header);
    for (const std::string& name : class_names) {
      AppendLittle(static_cast<uint32_t>(name.size()), names_);
      names_ += name;
    }
  }

  void Add(const OutputSample& sample) override {
    AppendLittle(static_cast<uint64_t>(position()), rows_);
    AppendLittle(static_cast<uint64_t>(sample.image.size()), rows_);
    AppendLittle(Crc32c(AsText(sample.image)), rows_);
    AppendLittle(static_cast<uint32_t>(sample.label), rows_);
    Append(AsText(sample.image));
    ++images_;
  }

  void Finish() override {
    std::string trailer;
    AppendLittle(images_, trailer);
    AppendLittle(static_cast<uint64_t>(position()), trailer);
    AppendLittle(static_cast<uint64_t>(names_.size()), trailer);
    AppendLittle(static_cast<uint32_t>(classes_), trailer);
    AppendLittle(Crc32c(names_, Crc32c(rows_)), trailer);
    AppendLittle<uint32_t>(0, trailer);
    AppendLittle(Crc32c(trailer), trailer);
    trailer += kPackedEnd;
    Append(rows_);
    Append(names_);
    Append(trailer);
  }

 private:
  size_t classes_;
  std::string names_;
  std::string rows_;  // of the index
  uint64_t images_ = 0;
};

}  // namespace

std::unique_ptr<ShardWriter> MakeShardWriter(
    ShardFormat format, const std::vector<std::string>& class_names,
    AppendBytes append) {
  switch (format) {
    case ShardFormat::kTfRecord:
      return std::make_unique<TfRecordWriter>(std::move(append), class_names);
    case ShardFormat::kRecordIo:
      return std::make_unique<RecordIoWriter>(std::move(append));
    case ShardFormat::kPacked:
      return std::make_unique<PackedWriter>(std::move(append), class_names);
    case ShardFormat::kTar:
      return std::make_unique<WebDatasetWriter>(std::move(append));
    case ShardFormat::kZip:
    case ShardFormat::kSafetensors:
    case ShardFormat::kNone:
      break;
  }
  ThrowError(ErrorCode::kInternal,
             fmt::format("no writer of {}", FormatName(format)));
}

}  // namespace fusor::runtime
