#include "runtime/data/datasets/convert.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/parallel_for.h"
#include "runtime/data/datasets/shard_format.h"
#include "runtime/data/datasets/shard_writer.h"
#include "runtime/data/image/decode.h"
#include "runtime/data/image/image_writer.h"
#include "runtime/data/image/resize.h"

namespace fusor::runtime {
namespace {

namespace fs = std::filesystem;

struct FormatInfo {
  const char* name;
  ShardFormat format;
  const char* extension;
  const char* index;  // extension of index files
};

FormatInfo InfoOf(OutputFormat format) {
  switch (format) {
    case OutputFormat::kPixels:
      return {"pixels", ShardFormat::kPacked, ".fusor", ""};
    case OutputFormat::kJpeg:
      return {"jpeg", ShardFormat::kPacked, ".fusor", ""};
    case OutputFormat::kTfRecord:
      return {"tfrecord", ShardFormat::kTfRecord, ".tfrecord", ".tfrecord.idx"};
    case OutputFormat::kRecordIo:
      return {"recordio", ShardFormat::kRecordIo, ".rec", ".idx"};
    case OutputFormat::kWebDataset:
      return {"webdataset", ShardFormat::kTar, ".tar", ""};
  }
  FUSOR_ASSERT(false, "format {}", static_cast<int>(format));
}

bool IsJpeg(std::span<const uint8_t> bytes) {
  return bytes.size() > 2 && bytes[0] == 0xff && bytes[1] == 0xd8;
}

// Returns the size after a resize of the shorter side; longer sides are
// truncated, as in torchvision.
ImageSize Resized(ImageSize size, int side) {
  const int shorter = std::min(size.width, size.height);
  if (side == 0 || shorter <= side) return size;
  const auto scaled = [&](int length) {
    return static_cast<int>(int64_t{length} * side / shorter);
  };
  return {scaled(size.width), scaled(size.height)};
}

// Reads and encodes samples.
class Encoder {
 public:
  Encoder(const ImageSet& images, const ConvertOptions& options)
      : images_(images), options_(options) {}

  // A sample in its new encoding.
  struct Encoded {
    std::vector<uint8_t> bytes;
    int32_t label = 0;
  };

  void Encode(int64_t index, Encoded& encoded) const {
    std::vector<uint8_t> storage;
    const Sample sample = images_.Read(index, storage);
    encoded.label = sample.label;
    const auto reader = OpenImage(sample.bytes, images_.Name(index));
    const ImageSize size = reader->size();
    const ImageSize result = Resized(size, options_.size);
    const bool pixels = options_.format == OutputFormat::kPixels;
    if (result == size && !pixels &&
        (options_.format != OutputFormat::kJpeg || IsJpeg(sample.bytes))) {
      encoded.bytes.assign(sample.bytes.begin(), sample.bytes.end());
      return;
    }
    Image image;
    reader->Read(WholeImage(size), image);
    if (result != size) {
      Resizer resizer;
      resizer.Plan(ResizeWhole(size, result));
      Image resized;
      resized.SetSize(result.width, result.height);
      resizer.Run(image, resized.pixels.data());
      image = std::move(resized);
    }
    encoded.bytes =
        pixels ? EncodePpm(image) : EncodeJpeg(image, options_.quality);
  }

 private:
  const ImageSet& images_;
  const ConvertOptions& options_;
};

// Ends a file whose conversion was stopped.
struct Stopped {};

class Converter {
 public:
  Converter(const ImageSet& images, const std::string& folder,
            const std::string& name, const ConvertOptions& options)
      : images_(images),
        folder_(folder),
        name_(name),
        options_(options),
        info_(InfoOf(options.format)),
        encoder_(images, options),
        files_((images.size() + options.images_per_file - 1) /
               options.images_per_file) {}

  ConvertReport Run() {
    Claim();
    ConvertReport report{.files = files_};
    for (int64_t file = 0; file < files_; ++file) {
      const int64_t begin = file * options_.images_per_file;
      const int64_t end =
          std::min(begin + options_.images_per_file, images_.size());
      const std::string path = PathOf(file);
      std::error_code ignored;  // a file that cannot be seen is written
      if (fs::exists(path + info_.extension, ignored)) {
        ++report.kept;
      } else {
        try {
          Write(path, begin, end);
        } catch (const Stopped&) {
          report.stopped = true;
          return report;
        }
      }
      report.images = end;
      if (options_.progress) options_.progress(end);
    }
    return report;
  }

 private:
  // Returns the path without extension.
  std::string PathOf(int64_t file) const {
    return fmt::format("{}/{}-{:05}-of-{:05}", folder_, name_, file, files_);
  }

  // Records what the files are made from, or checks that finished ones are made
  // from the same.
  void Claim() const {
    const std::string path = fmt::format("{}/{}.json", folder_, name_);
    const nlohmann::json record = {
        {"fusor", "data convert"},
        {"source", images_.Description()},
        {"format", info_.name},
        {"size", options_.size},
        {"quality", options_.quality},
        {"images_per_file", options_.images_per_file}};
    const std::string text = record.dump(1) + "\n";
    std::vector<uint8_t> found;
    if (fs::exists(path)) ReadFile(path, ErrorCode::kData, found);
    if (std::string(found.begin(), found.end()) == text) return;
    bool others = !found.empty();
    for (const auto& entry : fs::directory_iterator(folder_)) {
      others =
          others || entry.path().filename().string().starts_with(name_ + "-");
    }
    FUSOR_CHECK(!others, kData,
                "{}: holds {} files of another source or other options: "
                "expected an empty folder, or the same command",
                folder_, name_);
    WriteFileDurably(
        path, [&](const AppendBytes& append) { append(text); },
        ErrorCode::kData);
  }

  // Writes a file of the samples from `begin` to `end`, and before it its
  // index, so that a file with its name is complete.
  void Write(const std::string& path, int64_t begin, int64_t end) const {
    WriteFileDurably(
        path + info_.extension,
        [&](const AppendBytes& append) {
          const auto writer =
              MakeShardWriter(info_.format, images_.class_names(), append);
          WriteSamples(*writer, begin, end);
          writer->Finish();
          if (*info_.index != 0) {
            WriteFileAtomically(path + info_.index, writer->index(),
                                ErrorCode::kData);
          }
        },
        ErrorCode::kData);
  }

  void WriteSamples(ShardWriter& writer, int64_t begin, int64_t end) const {
    // Images that are encoded at the same time and then written in order.
    constexpr int64_t kPerThread = 16;
    std::vector<Encoder::Encoded> encoded;
    while (begin < end) {
      if (options_.stop && options_.stop()) throw Stopped();
      const int64_t count =
          std::min(end - begin, options_.threads * kPerThread);
      encoded.resize(static_cast<size_t>(count));
      ParallelFor(encoded.size(), options_.threads, [&](size_t i) {
        encoder_.Encode(begin + static_cast<int64_t>(i), encoded[i]);
      });
      for (const Encoder::Encoded& sample : encoded) {
        writer.Add(
            {.image = sample.bytes, .label = sample.label, .index = begin++});
      }
      if (options_.progress) options_.progress(begin);
    }
  }

  const ImageSet& images_;
  const std::string& folder_;
  const std::string& name_;
  const ConvertOptions& options_;
  const FormatInfo info_;
  const Encoder encoder_;
  const int64_t files_;
};

}  // namespace

ConvertReport Convert(const ImageSet& images, const std::string& folder,
                      const std::string& name, const ConvertOptions& options) {
  FUSOR_CHECK(
      options.size >= 0 && options.quality >= 1 && options.quality <= 100 &&
          options.threads > 0 && options.images_per_file > 0,
      kUsage,
      "data convert: expected a size of 0 or more, a quality from 1 to "
      "100 and positive numbers of threads and images per file, got "
      "{}, {}, {} and {}",
      options.size, options.quality, options.threads, options.images_per_file);
  FUSOR_CHECK(!images.class_names().empty(), kInternal,
              "data convert: labels of {} have not been read", images.path());
  return Converter(images, folder, name, options).Run();
}

}  // namespace fusor::runtime
