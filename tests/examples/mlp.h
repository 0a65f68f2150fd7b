#pragma once

#include <cstdint>
#include <memory>

#include "runtime/fusor.h"

namespace fusor::examples {

struct MlpOptions {
  int64_t batch = 32;
  int64_t features = 16;
  int64_t width = 64;
  int64_t blocks = 2;
  int64_t classes = 4;
};

// A classifier of vectors with residual blocks of layer normalisation, a linear
// layer and GELU. Inputs are "x" f32 [batch, features] and "labels" i32
// [batch], the output is "loss".
std::unique_ptr<ir::Graph> BuildMlp(const MlpOptions& options);

}  // namespace fusor::examples
