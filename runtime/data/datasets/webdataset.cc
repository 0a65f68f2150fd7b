#include "runtime/data/datasets/webdataset.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/parallel_for.h"
#include "runtime/data/datasets/record_set.h"
#include "runtime/data/files/tar.h"
#include "runtime/data/files/unpack.h"

namespace fusor::runtime {

struct WebDataset::Shard {
  std::string path;
  std::unique_ptr<InputFile> file;
  std::string names;  // of all samples
  std::vector<Entry> samples;
  TarSummary summary;
  int64_t first = 0;  // index of the first sample
};

namespace {

// Archives that are listed at the same time.
constexpr int kIndexThreads = 16;

constexpr std::array<std::string_view, 7> kImages = {
    "bmp", "gif", "jpeg", "jpg", "png", "ppm", "webp"};

// The parts of a file's name.
struct Key {
  std::string_view sample;
  std::string extension;  // in lower case
};

Key Split(std::string_view name) {
  const size_t slash = name.rfind('/');
  const size_t base = slash == std::string_view::npos ? 0 : slash + 1;
  const size_t dot = name.find('.', base);
  if (dot == std::string_view::npos || dot == base) return {name, ""};
  Key key{name.substr(0, dot), std::string(name.substr(dot + 1))};
  for (char& c : key.extension) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return key;
}

int32_t InRange(int64_t label) {
  return label >= 0 && label <= kMaxLabel ? static_cast<int32_t>(label)
                                          : kUnknownLabel;
}

int32_t ParseClass(std::string_view text) {
  const size_t end = text.find_last_not_of(" \r\n") + 1;
  int64_t label = 0;
  const char* const last = text.data() + end;
  const auto [at, error] = std::from_chars(text.data(), last, label);
  return error == std::errc() && at == last ? InRange(label) : kUnknownLabel;
}

int32_t ParseJson(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr,
                                          /*allow_exceptions=*/false);
  if (!json.is_object()) return kUnknownLabel;
  for (const char* field : {"label", "cls"}) {
    const auto value = json.find(field);
    if (value != json.end() && value->is_number_integer()) {
      return InRange(value->get<int64_t>());
    }
  }
  return kUnknownLabel;
}

}  // namespace

WebDataset::Shard WebDataset::List(const std::string& path) {
  Shard shard;
  shard.path = path;
  shard.file = std::make_unique<InputFile>(path, ErrorCode::kData);
  std::array<uint8_t, 3> start = {};
  shard.file->Read(0, std::span(start).first(static_cast<size_t>(
                          std::min(shard.file->size(), std::ssize(start)))));
  if (IsGzip(start)) shard.file = Gunzip(path);
  // Header and label of a sample are within this distance.
  constexpr uint64_t kPieceBytes = 2048;
  FileSource archive(
      *shard.file, {0, static_cast<uint64_t>(shard.file->size())}, kPieceBytes);
  const auto read = [&](const TarFile& file, uint64_t most) {
    const std::span<const uint8_t> bytes =
        archive.Read(file.data.begin, std::min(file.data.size, most));
    return std::string_view(reinterpret_cast<const char*>(bytes.data()),
                            bytes.size());
  };
  std::string last;  // name of the last sample
  shard.summary = ReadTar(archive, path, [&](const TarFile& file) {
    const Key key = Split(file.name);
    if (key.extension.empty()) return;
    if (shard.samples.empty() || key.sample != last) {
      last = key.sample;
      shard.samples.push_back({.name_bytes = static_cast<uint32_t>(last.size()),
                               .name_begin = std::ssize(shard.names)});
      shard.names += last;
    }
    Entry& sample = shard.samples.back();
    constexpr uint64_t kMaxClassBytes = 32;
    constexpr uint64_t kMaxJsonBytes = 1 << 20;
    if (std::binary_search(kImages.begin(), kImages.end(), key.extension)) {
      if (sample.size >= 0) return;
      sample.offset = static_cast<int64_t>(file.data.begin);
      sample.size = static_cast<int64_t>(file.data.size);
    } else if (key.extension == "cls") {
      sample.label = ParseClass(read(file, kMaxClassBytes));
    } else if (key.extension == "json" && sample.label == kUnknownLabel) {
      sample.label = ParseJson(read(file, kMaxJsonBytes));
    }
  });
  FUSOR_CHECK(!shard.samples.empty(), kData, "{}: the archive has no samples",
              path);
  return shard;
}

WebDataset::WebDataset(std::string path, const std::vector<std::string>& files)
    : ImageSet("WebDataset", std::move(path)), shards_(files.size()) {
  AllowOpenFiles(files.size());
  ParallelFor(files.size(), kIndexThreads,
              [&](size_t i) { shards_[i] = List(files[i]); });
  int32_t highest = kUnknownLabel;
  bool images = false;
  TarSummary skipped;
  for (Shard& shard : shards_) {
    shard.first = size();
    for (const Entry& sample : shard.samples) {
      highest = std::max(highest, sample.label);
      images = images || sample.size >= 0;
      samples_.push_back(sample);
    }
    shard.samples = {};
    if (skipped.links == 0) skipped.first_link = shard.summary.first_link;
    skipped.links += shard.summary.links;
  }
  FUSOR_CHECK(images, kData, "{}: expected images, got other files", path_);
  FUSOR_CHECK(highest >= 0, kData,
              "{}: expected labels in .cls or .json files, got none", path_);
  num_classes_ = highest + 1;
  for (int i = 0; i < num_classes_; ++i) {
    class_names_.push_back(fmt::format("{}", i));
  }
  if (skipped.links > 0) {
    warnings_.push_back(
        fmt::format("{} {}: ignored {} links and devices, first {}", format_,
                    path_, skipped.links, skipped.first_link));
  }
}

WebDataset::~WebDataset() = default;

const WebDataset::Shard& WebDataset::ShardOf(int64_t index) const {
  FUSOR_ASSERT(index >= 0 && index < size(), "sample {} of {}", index, size());
  const auto next = std::upper_bound(
      shards_.begin(), shards_.end(), index,
      [](int64_t i, const Shard& shard) { return i < shard.first; });
  return *(next - 1);
}

int32_t WebDataset::Label(int64_t index) const {
  return samples_[static_cast<size_t>(index)].label;
}

std::string WebDataset::Name(int64_t index) const {
  const Shard& shard = ShardOf(index);
  const Entry& sample = samples_[static_cast<size_t>(index)];
  return shard.path + ":" +
         shard.names.substr(static_cast<size_t>(sample.name_begin),
                            sample.name_bytes);
}

Sample WebDataset::Read(int64_t index, std::vector<uint8_t>& storage) const {
  const Shard& shard = ShardOf(index);
  const Entry& sample = samples_[static_cast<size_t>(index)];
  FUSOR_CHECK(sample.size >= 0, kData, "{}: expected an image, got none",
              Name(index));
  FUSOR_CHECK(sample.label != kUnknownLabel, kData,
              "{}: expected a class in a .cls or .json file, got none",
              Name(index));
  storage.resize(static_cast<size_t>(sample.size));
  shard.file->Read(sample.offset, storage);
  return {storage, sample.label};
}

uint64_t WebDataset::Fingerprint() const {
  uint64_t hash = kHashSeed;
  for (const Shard& shard : shards_) {
    hash = HashBytes(std::filesystem::path(shard.path).filename().string(),
                     HashBytes(shard.names, hash));
    hash = HashParts(*shard.file, hash);
  }
  for (const Entry& sample : samples_) {
    hash = HashCombine(hash, static_cast<uint64_t>(sample.offset));
    hash = HashCombine(hash, static_cast<uint64_t>(sample.size));
    hash = HashCombine(hash, static_cast<uint64_t>(sample.label));
  }
  return hash;
}

std::string WebDataset::Description() const {
  return fmt::format("{} images in {} files {:016x}", size(), shards_.size(),
                     Fingerprint());
}

}  // namespace fusor::runtime
