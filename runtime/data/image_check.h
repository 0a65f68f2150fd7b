#pragma once

#include <cstdint>

#include "runtime/data/augment/augment.h"
#include "runtime/data/dataset.h"

namespace fusor::runtime {

struct ImageCheckOptions {
  int threads = 1;
  // Each rank checks a share of the images.
  int rank = 0;
  int world_size = 1;
};

// Validates image headers before a run needs them. If the transform accepts
// only one image size, checks all images; otherwise checks the first image of
// each class. Throws kData for the first image, by index, that cannot be read
// or has another size.
void CheckImages(const Dataset& dataset, const Transform& transform,
                 const ImageCheckOptions& options);

}  // namespace fusor::runtime
