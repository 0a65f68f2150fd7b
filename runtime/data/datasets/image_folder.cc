#include "runtime/data/datasets/image_folder.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/hash.h"
#include "ir/support/str.h"

namespace fusor::runtime {
namespace {

namespace fs = std::filesystem;

// torchvision's list. It includes formats that cannot be decoded, so that such
// files are reported instead of silently ignored.
constexpr std::array<std::string_view, 9> kExtensions = {
    ".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"};

}  // namespace

bool HasImageExtension(const std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) return false;
  std::string extension = name.substr(dot);
  for (char& c : extension) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return std::binary_search(kExtensions.begin(), kExtensions.end(), extension);
}

namespace {

// Names in a folder, each list in bytewise order.
struct Listing {
  std::vector<std::string> folders;
  std::vector<std::string> images;
};

Listing List(const fs::path& folder) {
  Listing listing;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      std::string name = entry.path().filename().string();
      if (name.front() == '.') continue;
      if (HasImageExtension(name) && !entry.is_directory()) {
        listing.images.push_back(std::move(name));
      } else if (entry.is_directory()) {
        listing.folders.push_back(std::move(name));
      }
    }
  } catch (const fs::filesystem_error& error) {
    ThrowError(ErrorCode::kData,
               fmt::format("image folder: cannot list {}: {}", folder.string(),
                           error.code().message()));
  }
  std::sort(listing.folders.begin(), listing.folders.end());
  std::sort(listing.images.begin(), listing.images.end());
  return listing;
}

// Images of one folder of a class.
struct Group {
  std::string folder;  // relative to the class; empty: the class folder
  std::vector<std::string> images;
};

// Appends the groups at and below `relative`. `above` holds the real paths of
// all parent folders, to detect cyclic links.
void AddGroups(const fs::path& root, const std::string& relative,
               std::vector<fs::path>& above, std::vector<Group>& groups) {
  const fs::path folder = relative.empty() ? root : root / relative;
  std::error_code error;
  fs::path real = fs::canonical(folder, error);
  FUSOR_CHECK(!error, kData, "image folder: cannot list {}: {}",
              folder.string(), error.message());
  FUSOR_CHECK(std::find(above.begin(), above.end(), real) == above.end(), kData,
              "image folder: {} links to a folder above it", folder.string());
  above.push_back(std::move(real));
  Listing listing = List(folder);
  groups.push_back({relative, std::move(listing.images)});
  for (const std::string& name : listing.folders) {
    AddGroups(root, relative.empty() ? name : relative + "/" + name, above,
              groups);
  }
  above.pop_back();
}

}  // namespace

ImageFolder::ImageFolder(const std::string& root, int64_t max_per_class)
    : ImageSet("image folder", root) {
  const Listing listing = List(root);
  FUSOR_CHECK(!listing.folders.empty(), kData,
              "image folder {}: expected one folder per class, got none{}",
              root,
              listing.images.empty()
                  ? ""
                  : fmt::format(" but {} images", listing.images.size()));
  std::vector<std::string> empty;
  for (const std::string& name : listing.folders) {
    const int64_t before = size();
    AddClass(name, max_per_class);
    if (size() == before) empty.push_back(name);
  }
  FUSOR_CHECK(empty.empty(), kData,
              "image folder {}: no image in {} of {} class folders, first {}",
              root, empty.size(), class_names_.size(), Quoted(empty.front()));
  if (num_classes() == 1) {
    warnings_.push_back(
        fmt::format("image folder {}: only one class, {}: there is nothing to "
                    "tell apart",
                    root, Quoted(class_names_.front())));
  }
}

void ImageFolder::AddClass(const std::string& name, int64_t max_per_class) {
  class_names_.push_back(name);
  num_classes_ = static_cast<int>(class_names_.size());
  class_begin_.push_back(size());
  std::vector<fs::path> above;
  std::vector<Group> groups;
  AddGroups(fs::path(path_) / name, "", above, groups);
  // torchvision's order: by path, not by order of traversal.
  std::sort(groups.begin(), groups.end(),
            [](const Group& a, const Group& b) { return a.folder < b.folder; });
  for (const Group& group : groups) {
    for (const std::string& image : group.images) {
      if (max_per_class > 0 && size() - class_begin_.back() == max_per_class) {
        return;
      }
      path_begin_.push_back(paths_.size());
      if (!group.folder.empty()) paths_ += group.folder + "/";
      paths_ += image;
    }
  }
}

int64_t ImageFolder::size() const {
  return static_cast<int64_t>(path_begin_.size());
}

int32_t ImageFolder::Label(int64_t index) const {
  FUSOR_ASSERT(index >= 0 && index < size(), "sample {} of {}", index, size());
  const auto next =
      std::upper_bound(class_begin_.begin(), class_begin_.end(), index);
  return static_cast<int32_t>(next - class_begin_.begin()) - 1;
}

std::string ImageFolder::Name(int64_t index) const {
  const std::string& class_name = class_names_[Label(index)];
  const size_t begin = path_begin_[index];
  const size_t end =
      index + 1 < size() ? path_begin_[index + 1] : paths_.size();
  return path_ + "/" + class_name + "/" + paths_.substr(begin, end - begin);
}

uint64_t ImageFolder::Fingerprint() const {
  uint64_t hash = HashBytes(paths_);
  for (const std::string& name : class_names_) {
    hash = HashCombine(HashBytes(name, hash), name.size());
  }
  for (int64_t begin : class_begin_) {
    hash = HashCombine(hash, static_cast<uint64_t>(begin));
  }
  for (size_t begin : path_begin_) hash = HashCombine(hash, begin);
  return hash;
}

Sample ImageFolder::Read(int64_t index, std::vector<uint8_t>& storage) const {
  ReadFile(Name(index), ErrorCode::kData, storage);
  return {storage, Label(index)};
}

}  // namespace fusor::runtime
