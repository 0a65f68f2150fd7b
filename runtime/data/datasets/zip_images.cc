#include "runtime/data/datasets/zip_images.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "runtime/data/datasets/image_folder.h"

namespace fusor::runtime {
namespace {

constexpr std::array<std::string_view, 3> kSplits = {"train", "val",
                                                     "validation"};

struct ZipImage {
  std::string path;
  ZipEntry entry;
};

// The contents of an archive, without the folders that enclose everything.
struct Contents {
  std::string top;  // path of the outermost folders
  std::vector<ZipImage> images;
  std::vector<std::string> folders;  // with a final slash
};

// Whether a part of the path is hidden, as in ImageFolder, or macOS's.
bool IsHidden(std::string_view path) {
  return path.starts_with('.') || path.starts_with("__MACOSX/") ||
         path.find("/.") != std::string_view::npos;
}

// Returns the first part of a path; "" if it has one part only.
std::string_view FirstPart(std::string_view path) {
  const size_t slash = path.find('/');
  return slash == std::string_view::npos ? "" : path.substr(0, slash);
}

// Returns the folder around everything, if classes can be below it.
std::string_view OuterFolder(const std::vector<ZipImage>& images, size_t from) {
  const auto rest = [from](const ZipImage& image) {
    return std::string_view(image.path).substr(from);
  };
  if (images.empty()) return "";
  const std::string_view outer = FirstPart(rest(images.front()));
  if (std::find(kSplits.begin(), kSplits.end(), outer) != kSplits.end()) {
    return "";
  }
  const bool around =
      std::all_of(images.begin(), images.end(), [&](const ZipImage& image) {
        return FirstPart(rest(image)) == outer &&
               !FirstPart(rest(image).substr(outer.size() + 1)).empty();
      });
  return around ? outer : "";
}

Contents List(const InputFile& file) {
  Contents contents;
  ReadZipDirectory(ZipSource(file),
                   [&](std::string_view name, const ZipEntry& entry) {
                     if (IsHidden(name)) return;
                     if (name.ends_with('/')) {
                       contents.folders.emplace_back(name);
                     } else if (HasImageExtension(std::string(name))) {
                       contents.images.push_back({std::string(name), entry});
                     }
                   });
  while (true) {
    const std::string_view outer =
        OuterFolder(contents.images, contents.top.size());
    if (outer.empty()) return contents;
    contents.top += std::string(outer) + "/";
  }
}

// The order of ImageFolder: by class, then by folder, then by name.
struct SortKey {
  std::string_view class_name;
  std::string_view folder;
  std::string_view name;
  auto operator<=>(const SortKey&) const = default;
};

SortKey KeyOf(const ZipImage& image, size_t from) {
  const std::string_view path = std::string_view(image.path).substr(from);
  const std::string_view class_name = FirstPart(path);
  const std::string_view rest = path.substr(class_name.size() + 1);
  const size_t slash = rest.rfind('/');
  return slash == std::string_view::npos
             ? SortKey{class_name, "", rest}
             : SortKey{class_name, rest.substr(0, slash),
                       rest.substr(slash + 1)};
}

}  // namespace

ZipImages::ZipImages(const std::string& path, const std::string& split,
                     int64_t max_per_class)
    : ImageSet("zip archive", path),
      file_(std::make_unique<InputFile>(path, ErrorCode::kData)) {
  Contents contents = List(*file_);
  const std::string top =
      split.empty() ? contents.top : contents.top + split + "/";
  const auto in_class = [&](std::string_view name) {
    return name.starts_with(top) && !FirstPart(name.substr(top.size())).empty();
  };
  std::erase_if(contents.images,
                [&](const ZipImage& image) { return !in_class(image.path); });
  std::sort(contents.images.begin(), contents.images.end(),
            [&](const ZipImage& a, const ZipImage& b) {
              return KeyOf(a, top.size()) < KeyOf(b, top.size());
            });
  FUSOR_CHECK(!contents.images.empty(), kData,
              "zip archive {}: expected one folder of images per class{}{}, "
              "got none",
              path, split.empty() ? "" : " in ", split);
  for (const ZipImage& image : contents.images) {
    const std::string_view name = KeyOf(image, top.size()).class_name;
    if (class_names_.empty() || class_names_.back() != name) {
      class_names_.emplace_back(name);
      class_begin_.push_back(size());
    } else if (max_per_class > 0 &&
               size() - class_begin_.back() == max_per_class) {
      continue;
    }
    path_begin_.push_back(paths_.size());
    paths_ += image.path;
    entries_.push_back(image.entry);
  }
  path_begin_.push_back(paths_.size());
  num_classes_ = static_cast<int>(class_names_.size());
  const std::set<std::string_view> named(class_names_.begin(),
                                         class_names_.end());
  for (const std::string& folder : contents.folders) {
    if (!in_class(folder)) continue;
    const std::string_view name =
        FirstPart(std::string_view(folder).substr(top.size()));
    FUSOR_CHECK(named.contains(name), kData,
                "zip archive {}: no image in class folder '{}'", path, name);
  }
}

int32_t ZipImages::Label(int64_t index) const {
  FUSOR_ASSERT(index >= 0 && index < size(), "sample {} of {}", index, size());
  const auto next =
      std::upper_bound(class_begin_.begin(), class_begin_.end(), index);
  return static_cast<int32_t>(next - class_begin_.begin()) - 1;
}

std::string_view ZipImages::PathOf(int64_t index) const {
  const auto at = static_cast<size_t>(index);
  return std::string_view(paths_).substr(path_begin_[at],
                                         path_begin_[at + 1] - path_begin_[at]);
}

std::string ZipImages::Name(int64_t index) const {
  return fmt::format("{}:{}", path_, PathOf(index));
}

Sample ZipImages::Read(int64_t index, std::vector<uint8_t>& storage) const {
  ReadZipEntry(ZipSource(*file_), entries_[static_cast<size_t>(index)],
               Name(index), storage);
  return {storage, Label(index)};
}

uint64_t ZipImages::Fingerprint() const {
  uint64_t hash = HashBytes(paths_);
  for (const ZipEntry& entry : entries_) {
    hash = HashCombine(HashCombine(hash, entry.size), entry.crc);
  }
  for (int64_t begin : class_begin_) {
    hash = HashCombine(hash, static_cast<uint64_t>(begin));
  }
  return hash;
}

std::vector<std::string> ZipSplits(const std::string& path) {
  const Contents contents = List(InputFile(path, ErrorCode::kData));
  std::vector<std::string> splits;
  for (const std::string_view split : kSplits) {
    const std::string folder = contents.top + std::string(split) + "/";
    if (std::any_of(contents.images.begin(), contents.images.end(),
                    [&](const ZipImage& image) {
                      return image.path.starts_with(folder);
                    })) {
      splits.emplace_back(split);
    }
  }
  return splits;
}

}  // namespace fusor::runtime
