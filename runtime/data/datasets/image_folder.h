#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/datasets/image_set.h"

namespace fusor::runtime {

// A folder with one subfolder per class, as torchvision's ImageFolder. Class i
// is the i-th subfolder in bytewise name order. Its samples are all files below
// it with an image extension (jpg, jpeg, png, ppm, bmp, pgm, tif, tiff, webp in
// any case), sorted by folder and then by name. Symbolic links are followed;
// names that begin with a dot are ignored. Files are listed once and read on
// demand.
class ImageFolder : public ImageSet {
 public:
  // Lists `root`, keeping the first `max_per_class` samples of each class (0:
  // all). Throws kData if it cannot be read, has no class folder, or has a
  // class without images.
  explicit ImageFolder(const std::string& root, int64_t max_per_class = 0);

  int64_t size() const override;
  int32_t Label(int64_t index) const override;
  std::string Name(int64_t index) const override;
  Sample Read(int64_t index, std::vector<uint8_t>& storage) const override;

  // Hashes class and sample names and their order. Independent of the folder's
  // path and of file contents.
  uint64_t Fingerprint() const override;

 private:
  void AddClass(const std::string& name, int64_t max_per_class);

  std::vector<int64_t> class_begin_;  // index of the first sample of each class
  // Paths below the class folders, concatenated: a million strings would cost
  // several times as much.
  std::string paths_;
  std::vector<size_t> path_begin_;  // of each sample in paths_
};

// Returns whether the name has an image extension.
bool HasImageExtension(const std::string& name);

}  // namespace fusor::runtime
