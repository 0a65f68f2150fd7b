#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/data/datasets/image_set.h"

namespace fusor::runtime {

// Formats that a data set can be written in.
enum class OutputFormat {
  kPixels,  // fusor's shards (PackedImages) of decoded images
  kJpeg,    // fusor's shards of JPEG files
  kTfRecord,
  kRecordIo,
  kWebDataset,
};

struct ConvertOptions {
  OutputFormat format = OutputFormat::kPixels;
  // Images whose shorter side is longer are resized to this side, as
  // torchvision does (0: none).
  int size = 0;
  int quality = 90;  // of images that are encoded as JPEG
  int threads = 1;
  int64_t images_per_file = 2048;
  // Called after some images, with their number so far.
  std::function<void(int64_t images)> progress{};
  // Asked between images: ends the conversion if it returns true.
  std::function<bool()> stop{};
};

struct ConvertReport {
  int64_t images = 0;
  int64_t files = 0;
  int64_t kept = 0;  // files that an earlier conversion had written
  bool stopped = false;
};

// Writes all samples, in order, to folder/NAME-00000-of-00003.EXT and so on,
// with the index files of the format. Images keep their bytes unless they are
// resized or the format holds no such files.
//
// A file is complete once it has its name. folder/NAME.json records source and
// options, so that a later call of the same source and options keeps finished
// files. Throws kData if the folder holds the files of others, if an image
// cannot be read, and if the disk is full; neither leaves an incomplete file.
ConvertReport Convert(const ImageSet& images, const std::string& folder,
                      const std::string& name, const ConvertOptions& options);

}  // namespace fusor::runtime
