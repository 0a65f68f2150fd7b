#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ir/support/file.h"
#include "ir/support/zip_directory.h"
#include "runtime/data/datasets/image_set.h"

namespace fusor::runtime {

// An image folder in a zip archive, with the classes and the order that
// ImageFolder has for the unpacked folder. Files may be stored or deflated.
// Folders around everything, which archivers add, are skipped.
class ZipImages : public ImageSet {
 public:
  // Opens the folder `split` of the archive; "" for the archive's top. Throws
  // kData if the archive is damaged, has no class folder or has a class without
  // images.
  ZipImages(const std::string& path, const std::string& split,
            int64_t max_per_class = 0);

  int64_t size() const override {
    return static_cast<int64_t>(entries_.size());
  }
  int32_t Label(int64_t index) const override;
  std::string Name(int64_t index) const override;
  Sample Read(int64_t index, std::vector<uint8_t>& storage) const override;
  // Hashes names, sizes and checksums.
  uint64_t Fingerprint() const override;

 private:
  std::string_view PathOf(int64_t index) const;

  std::unique_ptr<InputFile> file_;
  std::vector<ZipEntry> entries_;
  std::vector<int64_t> class_begin_;  // index of the first image of each class
  // Paths in the archive, concatenated: a million strings would cost several
  // times as much.
  std::string paths_;
  std::vector<size_t> path_begin_;  // of each image, and the end
};

// Returns which of the folders train, val and validation an archive has at its
// top.
std::vector<std::string> ZipSplits(const std::string& path);

}  // namespace fusor::runtime
