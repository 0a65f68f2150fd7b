#pragma once

#include <cstdint>
#include <filesystem>

namespace fusor::runtime {

// A small generated data set: real JPEG files of drawn pictures.
struct SampleImagesOptions {
  int train_images = 32;  // of each class
  int val_images = 8;     // of each class
  int min_side = 160;     // pixels; width and height are drawn
  int max_side = 320;     // from [min_side, max_side]
  uint64_t seed = 0;
};

// Draws the data set as folder/{train,val}/CLASS/NNNN.jpg. `folder` must be
// empty or not exist. The classes are checkers, discs, gradients, rings and
// stripes. Their patterns have random colours, scale, rotation and noise, so
// that only shape distinguishes them. Equal options give equal pictures.
//
// Draws into a neighbouring folder that replaces `folder` at the end; a failure
// leaves neither behind. Throws kUsage for invalid options, kData if `folder`
// is not empty or cannot be written.
void WriteSampleImages(const std::filesystem::path& folder,
                       const SampleImagesOptions& options = {});

}  // namespace fusor::runtime
