#include "runtime/data/datasets/open_dataset.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/regex.h"
#include "runtime/data/datasets/image_folder.h"
#include "runtime/data/datasets/packed_images.h"
#include "runtime/data/datasets/recordio.h"
#include "runtime/data/datasets/shard_format.h"
#include "runtime/data/datasets/tensor_set.h"
#include "runtime/data/datasets/tfrecord.h"
#include "runtime/data/datasets/webdataset.h"
#include "runtime/data/datasets/zip_images.h"

namespace fusor::runtime {
namespace {

namespace fs = std::filesystem;

// Which splits a set has.
struct Splits {
  bool train = false;
  std::string val;  // name of the validation images; "": none
};

// Returns the name of the split; "" if the set does not tell splits apart, and
// nothing if it has only the other one.
std::optional<std::string> NameOf(const std::string& path, const Splits& splits,
                                  Split split) {
  if (!splits.train && splits.val.empty()) return "";
  FUSOR_CHECK(splits.train || split == Split::kVal, kData,
              "{}: expected the folders train and val, got only val", path);
  if (split == Split::kTrain) return "train";
  if (splits.val.empty()) return std::nullopt;
  return splits.val;
}

Splits SplitsOf(const std::string& folder) {
  std::error_code ignored;  // treat inaccessible paths as missing
  const auto has = [&](const char* name) {
    return fs::is_directory(fs::path(folder) / name, ignored);
  };
  return {.train = has("train"),
          .val = has("val")          ? "val"
                 : has("validation") ? "validation"
                                     : ""};
}

Splits SplitsOfZip(const std::string& path) {
  const std::vector<std::string> names = ZipSplits(path);
  Splits splits;
  for (const std::string& name : names) {
    if (name == "train") {
      splits.train = true;
    } else if (splits.val.empty()) {
      splits.val = name;
    }
  }
  return splits;
}

// Returns the regular files of a folder of shards, sorted; none if it has
// subfolders of classes.
std::vector<std::string> FilesOf(const std::string& folder) {
  std::vector<std::string> files;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (name.front() == '.' || name.front() == '_') continue;
      if (entry.is_regular_file()) {
        files.push_back(entry.path().string());
      } else if (entry.is_directory() && name != "idx" && name != "idx_files") {
        return {};
      }
    }
  } catch (const fs::filesystem_error& error) {
    ThrowError(ErrorCode::kData, fmt::format("cannot list {}: {}", folder,
                                             error.code().message()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Returns the files that a glob matches, sorted.
std::vector<std::string> Matches(const std::string& pattern) {
  glob_t found = {};
  std::vector<std::string> files;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  globfree(&found);
  std::sort(files.begin(), files.end());
  return files;
}

struct Shard {
  std::string path;
  ShardFormat format;
};

// Returns the files that are shards, and empty files among them.
std::vector<Shard> ShardsAmong(const std::vector<std::string>& files) {
  std::vector<Shard> shards;
  bool found = false;
  for (const std::string& file : files) {
    const ShardFormat format = DetectFormat(file);
    if (format != ShardFormat::kNone || fs::file_size(file) == 0) {
      shards.push_back({file, format});
    }
    found = found || format != ShardFormat::kNone;
  }
  if (!found) return {};
  for (const Shard& shard : shards) {
    FUSOR_CHECK(shard.format != ShardFormat::kNone, kData,
                "{}: the file is empty, expected {} as in {}", shard.path,
                FormatName(shards.front().format), shards.front().path);
  }
  return shards;
}

bool Named(const Shard& shard, std::string_view start) {
  return fs::path(shard.path).filename().string().starts_with(start);
}

bool AnyNamed(const std::vector<Shard>& shards, std::string_view start) {
  return std::any_of(shards.begin(), shards.end(),
                     [&](const Shard& shard) { return Named(shard, start); });
}

// Returns the shards of the split.
std::vector<Shard> OfSplit(const std::string& path, std::vector<Shard> shards,
                           Split split) {
  const bool has_train = AnyNamed(shards, "train");
  if (!has_train && !AnyNamed(shards, "val")) return shards;
  FUSOR_CHECK(has_train || split == Split::kVal, kData,
              "{}: expected files train* and val*, got only val*", path);
  const std::string_view start = split == Split::kTrain ? "train" : "val";
  std::erase_if(shards,
                [&](const Shard& shard) { return !Named(shard, start); });
  return shards;
}

// Returns a warning if names such as train-00003-of-01024 show that files are
// missing; "" otherwise.
std::string MissingFiles(const std::vector<std::string>& files) {
  static const Regex kNumbered(R"((.*-)(\d{1,9})-of-(\d{1,9})(\D.*)?)");
  std::set<std::string> names;
  std::optional<Regex::Groups> parts;
  for (const std::string& file : files) {
    const std::string name = fs::path(file).filename().string();
    parts = kNumbered.Match(name);
    if (!parts) return "";
    names.insert(name);
  }
  const int64_t count = std::stoll((*parts)[3]);
  if (count <= std::ssize(names)) return "";
  for (int64_t i = 0;; ++i) {
    const std::string name =
        fmt::format("{}{:0{}}-of-{}{}", (*parts)[1], i, (*parts)[2].size(),
                    (*parts)[3], (*parts)[4]);
    if (!names.contains(name)) {
      return fmt::format("{} of {} files are missing, first {}",
                         count - std::ssize(names), count, name);
    }
  }
}

// Opens the split of an archive.
std::unique_ptr<ImageSet> OpenZip(const std::string& path,
                                  const DatasetOptions& options) {
  const std::optional<std::string> split =
      NameOf(path, SplitsOfZip(path), options.split);
  if (!split) return nullptr;
  return std::make_unique<ZipImages>(path, *split, options.max_per_class);
}

std::unique_ptr<ImageSet> OpenShards(const std::string& path,
                                     const std::vector<Shard>& shards,
                                     const DatasetOptions& options) {
  std::vector<std::string> files;
  for (const Shard& shard : shards) {
    FUSOR_CHECK(shard.format == shards.front().format, kData,
                "{}: expected files of one format, got {} ({}) and {} ({})",
                path, shards.front().path, FormatName(shards.front().format),
                shard.path, FormatName(shard.format));
    files.push_back(shard.path);
  }
  if (shards.front().format == ShardFormat::kZip) {
    FUSOR_CHECK(shards.size() == 1, kData,
                "{}: expected one zip archive per split, got {}", path,
                shards.size());
    return OpenZip(files.front(), options);
  }
  const RecordOptions records{.num_classes = options.num_classes,
                              .labels = options.max_per_class > 0};
  std::unique_ptr<ImageSet> images;
  switch (shards.front().format) {
    case ShardFormat::kZip:
    case ShardFormat::kNone:
      break;
    case ShardFormat::kTfRecord:
      images = std::make_unique<TfRecordSet>(path, files, records);
      break;
    case ShardFormat::kRecordIo:
      images = std::make_unique<RecordIoSet>(path, files, records);
      break;
    case ShardFormat::kPacked:
      images = std::make_unique<PackedImages>(path, files);
      break;
    case ShardFormat::kTar:
      images = std::make_unique<WebDataset>(path, files);
      break;
    case ShardFormat::kSafetensors:
      FUSOR_CHECK(options.max_per_class == 0, kUsage,
                  "--max-per-class: expected images with a class each, got "
                  "tensors in {}",
                  path);
      images = std::make_unique<TensorSet>(path, files, options.inputs);
      break;
  }
  FUSOR_ASSERT(images != nullptr, "{}: a shard of no format", path);
  const std::string missing = MissingFiles(files);
  if (!missing.empty()) {
    images->AddWarning(
        fmt::format("{} {}: {}", images->format(), path, missing));
  }
  return options.max_per_class == 0
             ? std::move(images)
             : FirstOfEachClass(std::move(images), options.max_per_class);
}

}  // namespace

std::vector<Split> NamedSplits(const std::string& path) {
  std::error_code ignored;  // treat inaccessible paths as missing
  const bool is_folder = fs::is_directory(path, ignored);
  Splits splits;
  if (is_folder) splits = SplitsOf(path);
  if (!splits.train && splits.val.empty()) {
    const std::vector<Shard> shards =
        ShardsAmong(is_folder ? FilesOf(path) : Matches(path));
    if (shards.size() == 1 && shards.front().format == ShardFormat::kZip) {
      splits = SplitsOfZip(shards.front().path);
    }
    if (!splits.train && splits.val.empty()) {
      splits = {.train = AnyNamed(shards, "train"),
                .val = AnyNamed(shards, "val") ? "val" : ""};
    }
  }
  std::vector<Split> named;
  if (splits.train) named.push_back(Split::kTrain);
  if (!splits.val.empty()) named.push_back(Split::kVal);
  return named;
}

std::unique_ptr<ImageSet> OpenDataset(const std::string& path,
                                      const DatasetOptions& options) {
  std::error_code ignored;  // treat inaccessible paths as missing
  const bool is_folder = fs::is_directory(path, ignored);
  std::string place = path;
  std::vector<std::string> files = {path};
  if (is_folder) {
    const std::optional<std::string> split =
        NameOf(path, SplitsOf(path), options.split);
    if (!split) return nullptr;
    if (!split->empty()) place = (fs::path(path) / *split).string();
    files = FilesOf(place);
  } else if (!fs::exists(path, ignored)) {
    files = Matches(path);
    FUSOR_CHECK(!files.empty(), kData, "{}: no such file or folder", path);
  }
  const std::vector<Shard> shards = ShardsAmong(files);
  if (shards.empty() && is_folder) {
    return std::make_unique<ImageFolder>(place, options.max_per_class);
  }
  FUSOR_CHECK(!shards.empty(), kData,
              "{}: expected a folder or a data set such as TFRecord files, got "
              "another file",
              path);
  const std::vector<Shard> chosen = OfSplit(place, shards, options.split);
  return chosen.empty() ? nullptr : OpenShards(place, chosen, options);
}

}  // namespace fusor::runtime
