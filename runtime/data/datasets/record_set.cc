#include "runtime/data/datasets/record_set.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/parallel_for.h"
#include "runtime/data/files/byte_source.h"

namespace fusor::runtime {
namespace {

namespace fs = std::filesystem;

// Files whose records are listed at the same time.
constexpr int kThreads = 16;

}  // namespace

RecordSet::RecordSet(std::string_view format, std::string path,
                     std::vector<RecordShard> shards,
                     const RecordOptions& options)
    : ImageSet(format, std::move(path)), shards_(std::move(shards)), first_{0} {
  FUSOR_ASSERT(!shards_.empty(), "{}: no files", path_);
  for (const RecordShard& shard : shards_) {
    FUSOR_CHECK(shard.size() > 0, kData, "{}: the file has no records",
                shard.file->path());
    first_.push_back(first_.back() + shard.size());
  }
  // Only the first file tells, so that all ways to open a set agree.
  first_label_ = shards_.front().first_label;
  if (options.read_labels()) {
    NameClasses();
  } else {
    num_classes_ = options.num_classes;
  }
}

// Sets the number of classes and their names from the labels.
void RecordSet::NameClasses() {
  int32_t lowest = kMaxLabel;
  int32_t highest = kUnknownLabel;
  std::map<int32_t, std::string> names;
  for (RecordShard& shard : shards_) {
    for (const int32_t label : shard.labels) {
      if (label == kUnknownLabel) continue;
      lowest = std::min(lowest, label);
      highest = std::max(highest, label);
    }
    names.merge(shard.names);
  }
  FUSOR_CHECK(highest >= 0, kData, "{}: no record has a label", path_);
  // A label 0 contradicts a count from 1.
  first_label_ = std::min(first_label_, lowest);
  num_classes_ = highest - first_label_ + 1;
  for (int32_t label = first_label_; label <= highest; ++label) {
    const auto name = names.find(label);
    class_names_.push_back(name != names.end() && !name->second.empty()
                               ? name->second
                               : fmt::format("{}", label));
  }
  if (lowest > first_label_) {
    warnings_.push_back(
        fmt::format("{} {}: no image of class {}, labels start at {}", format_,
                    path_, first_label_, lowest));
  }
}

size_t RecordSet::ShardOf(int64_t index) const {
  FUSOR_ASSERT(index >= 0 && index < size(), "sample {} of {}", index, size());
  return static_cast<size_t>(
             std::upper_bound(first_.begin(), first_.end(), index) -
             first_.begin()) -
         1;
}

int32_t RecordSet::Label(int64_t index) const {
  const size_t shard = ShardOf(index);
  const std::vector<int32_t>& labels = shards_[shard].labels;
  if (labels.empty()) return kUnknownLabel;
  const int32_t label = labels[static_cast<size_t>(index - first_[shard])];
  return label == kUnknownLabel ? kUnknownLabel : label - first_label_;
}

std::string RecordSet::Name(int64_t index) const {
  const size_t shard = ShardOf(index);
  return fmt::format("{}:{}", shards_[shard].file->path(),
                     index - first_[shard]);
}

RecordSet::Record RecordSet::Find(int64_t index) const {
  const size_t shard = ShardOf(index);
  const auto& offsets = shards_[shard].offsets;
  const auto at = static_cast<size_t>(index - first_[shard]);
  return {shards_[shard], offsets[at], offsets[at + 1] - offsets[at]};
}

std::span<const uint8_t> RecordSet::ReadRecord(
    int64_t index, std::vector<uint8_t>& storage) const {
  const Record record = Find(index);
  storage.resize(static_cast<size_t>(record.size));
  record.shard.file->Read(record.offset, storage);
  return storage;
}

int32_t RecordSet::ClassOf(int64_t label, int64_t index) const {
  FUSOR_CHECK(label >= first_label_ && label < first_label_ + num_classes_,
              kData, "{}: expected a label from {} to {}, got {}", Name(index),
              first_label_, first_label_ + num_classes_ - 1, label);
  return static_cast<int32_t>(label) - first_label_;
}

uint64_t RecordSet::Fingerprint() const {
  uint64_t hash = HashCombine(kHashSeed, static_cast<uint64_t>(first_label_));
  for (const RecordShard& shard : shards_) {
    hash = HashCombine(
        HashBytes(fs::path(shard.file->path()).filename().string(), hash),
        shard.offsets.size());
    for (const int64_t offset : shard.offsets) {
      hash = HashCombine(hash, static_cast<uint64_t>(offset));
    }
    hash = HashParts(*shard.file, hash);
  }
  return hash;
}

std::string RecordSet::Description() const {
  return fmt::format("{} images in {} files {:016x}", size(), shards_.size(),
                     Fingerprint());
}

std::vector<RecordShard> OpenShards(const std::vector<std::string>& files,
                                    bool labels, const OpenShard& open) {
  AllowOpenFiles(files.size());
  std::vector<RecordShard> shards(files.size());
  ParallelFor(files.size(), kThreads,
              [&](size_t i) { shards[i] = open(files[i], labels); });
  return shards;
}

std::string FindIndex(const std::string& path) {
  const fs::path file(path);
  const fs::path folder = file.parent_path();
  std::vector<fs::path> found = {path + ".idx"};
  if (file.has_extension())
    found.push_back(fs::path(file).replace_extension(".idx"));
  for (const fs::path& place : {folder, folder / ".."}) {
    for (const char* name : {"idx", "idx_files"}) {
      found.push_back(place / name / (file.filename().string() + ".idx"));
      found.push_back(place / name / file.filename());
    }
  }
  for (const fs::path& index : found) {
    std::error_code ignored;  // an index that cannot be read is not used
    if (fs::is_regular_file(index, ignored)) return index.string();
  }
  return "";
}

std::vector<std::pair<int64_t, int64_t>> ReadIndex(const std::string& path) {
  std::vector<uint8_t> bytes;
  ReadFile(path, ErrorCode::kData, bytes);
  const char* at = reinterpret_cast<const char*>(bytes.data());
  const char* const end = at + bytes.size();
  std::vector<std::pair<int64_t, int64_t>> lines;
  while (at < end) {
    std::array<int64_t, 2> numbers = {};
    bool good = true;
    for (int64_t& number : numbers) {
      while (at < end && (*at == ' ' || *at == '\t')) ++at;
      const auto [next, error] = std::from_chars(at, end, number);
      good = good && error == std::errc() && number >= 0;
      at = next;
    }
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r')) ++at;
    FUSOR_CHECK(good && (at == end || *at == '\n'), kData,
                "index {}: line {}: expected two whole numbers", path,
                lines.size() + 1);
    if (at < end) ++at;
    lines.emplace_back(numbers[0], numbers[1]);
  }
  return lines;
}

}  // namespace fusor::runtime
