#pragma once

#include <cstdint>
#include <memory>

#include "runtime/fusor.h"

namespace fusor::examples {

struct SmallCnnOptions {
  int64_t batch = 16;
  int64_t image_size = 16;
  int64_t classes = 4;
};

// A classifier of grey images: two convolutions with batch normalisation and
// ReLU. Running statistics are state of the graph. Inputs are "x" f32 [batch,
// 1, image_size, image_size] and "labels" i32 [batch], the output is "loss".
std::unique_ptr<ir::Graph> BuildSmallCnn(const SmallCnnOptions& options);

}  // namespace fusor::examples
