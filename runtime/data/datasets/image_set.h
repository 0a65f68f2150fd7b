#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/data/dataset.h"

namespace fusor::runtime {

// A data set on disk, as DATA names it.
class ImageSet : public Dataset {
 public:
  int num_classes() const override { return num_classes_; }

  // Class names by label; empty if labels have not been read.
  const std::vector<std::string>& class_names() const { return class_names_; }

  // The folder, file or glob that was opened.
  const std::string& path() const { return path_; }

  // Warnings about the whole set, one line each.
  const std::vector<std::string>& warnings() const { return warnings_; }
  void AddWarning(std::string warning) {
    warnings_.push_back(std::move(warning));
  }

  // The format in words, such as "image folder".
  std::string_view format() const { return format_; }

  // Hashes the samples' order and names, sizes or contents, as far as they are
  // known without reading everything. Independent of path().
  virtual uint64_t Fingerprint() const = 0;

  // Returns size and fingerprint in words. A run can be resumed, and shared by
  // ranks, only on data of the same description.
  virtual std::string Description() const;

 protected:
  ImageSet(std::string_view format, std::string path)
      : format_(format), path_(std::move(path)) {}

  const std::string_view format_;

  const std::string path_;
  int num_classes_ = 0;
  std::vector<std::string> class_names_;
  std::vector<std::string> warnings_;
};

// Returns the set of the first `max_per_class` samples of each class. Throws
// kData if labels have not been read.
std::unique_ptr<ImageSet> FirstOfEachClass(std::unique_ptr<ImageSet> images,
                                           int64_t max_per_class);

// Throws kData if `val` has other classes than `train`, since labels would not
// correspond. Sets without class names pass.
void CheckSameClasses(const ImageSet& train, const ImageSet& val);

}  // namespace fusor::runtime
