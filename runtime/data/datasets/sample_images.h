#pragma once

#include <cstdint>
#include <filesystem>

namespace fusor::runtime {

// A small data set that anyone can make: real JPEG files of drawn pictures.
struct SampleImagesOptions {
  int train_images = 32;  // of each class
  int val_images = 8;     // of each class
  int min_side = 160;     // width and height in pixels lie in
  int max_side = 320;     //   [min_side, max_side]
  uint64_t seed = 0;
};

// Draws the data set into `folder`, which must not exist or be empty, as
// folder/{train,val}/CLASS/NNNN.jpg. The classes are checkers, discs,
// gradients, rings and stripes: patterns in random colours, scale and
// rotation, under noise, so that shape alone tells them apart. The same options
// draw the same pictures.
//
// Everything is drawn into a neighbouring folder that takes the place of
// `folder` at the end; a failure leaves neither behind. Throws kUsage for bad
// options, kData when `folder` holds something or cannot be written.
void WriteSampleImages(const std::filesystem::path& folder,
                       const SampleImagesOptions& options = {});

}  // namespace fusor::runtime
