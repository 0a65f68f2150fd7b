#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/dataset.h"

namespace fusor::runtime {

// A folder with one folder of images a class, as torchvision's ImageFolder:
// class i is the i-th folder name in bytewise order; its samples are all files
// below it with an image's extension (jpg, jpeg, png, ppm, bmp, pgm, tif, tiff,
// webp in any case), by folder and then by name. Links are followed; names that
// begin with a dot are left out. Files are listed once and read when asked for.
class ImageFolder : public Dataset {
 public:
  // Lists `root`, keeping the first `max_per_class` samples of each class (0
  // keeps all). Throws kData: it cannot be read, has no class folder, or a
  // class has no image.
  explicit ImageFolder(const std::string& root, int64_t max_per_class = 0);

  int64_t size() const override;
  int num_classes() const override;
  int32_t Label(int64_t index) const override;
  std::string Name(int64_t index) const override;
  void Read(int64_t index, std::vector<uint8_t>& bytes) const override;

  // Of the names of classes and samples and their order, wherever the folder
  // lies; not of what is in the files.
  uint64_t Fingerprint() const;

  const std::string& root() const { return root_; }
  const std::vector<std::string>& class_names() const { return class_names_; }

  // Things that are allowed but seldom meant, one line each: a single class.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  void AddClass(const std::string& name, int64_t max_per_class);

  std::string root_;
  std::vector<std::string> class_names_;
  std::vector<int64_t> class_begin_;  // the first sample of each class
  // Paths below the class folders, one after the other: a million strings
  // would cost several times as much.
  std::string paths_;
  std::vector<size_t> path_begin_;  // of each sample in paths_
  std::vector<std::string> warnings_;
};

// Whether the name is that of an image, by its extension.
bool HasImageExtension(const std::string& name);

// Throws kData when `val` has other classes than `train`: its labels would mean
// something else.
void CheckSameClasses(const ImageFolder& train, const ImageFolder& val);

}  // namespace fusor::runtime
