#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/datasets/image_set.h"

namespace fusor::runtime {

enum class Split { kTrain, kVal };

struct DatasetOptions {
  Split split = Split::kTrain;
  int64_t max_per_class = 0;  // keep only the first samples of a class (0: all)
  // Number of classes, if known. A format that stores labels in its records
  // then does not read them all at the start.
  int num_classes = 0;
  // Names of the input tensors, if DATA is a set of tensors.
  std::vector<std::string> inputs = {"input"};
};

// Opens the training or the validation images of DATA. The format is detected
// by content, never by a file's extension. DATA is one of
//
//   - a folder with subfolders train and val (or validation): each is opened as
//     below, and a split without subfolder has no images;
//   - a folder with one subfolder per class: an ImageFolder;
//   - a folder of shards: files of one of the formats of DetectFormat, in
//     bytewise order of their names. Its only subfolders are those of index
//     files (idx, idx_files);
//   - a zip archive of an image folder, with or without train and val;
//   - a glob such as 'DATA/part-*', or the name of a file.
//
// Shards whose names start with "train" belong to the training images, and with
// "val" to the validation images. If there are neither, DATA, like an image
// folder without train and val, is both.
//
// Returns null if there are only training images and kVal is requested. Throws
// kData if there are only validation images and kTrain is requested, and if
// DATA cannot be read, has no images, or mixes formats.
std::unique_ptr<ImageSet> OpenDataset(const std::string& path,
                                      const DatasetOptions& options);

// Returns which splits DATA tells apart; empty if OpenDataset returns the same
// images for both.
std::vector<Split> NamedSplits(const std::string& path);

}  // namespace fusor::runtime
