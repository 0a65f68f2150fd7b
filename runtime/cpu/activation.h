#pragma once

#include <cstdint>

#include "ir/tensor_type.h"

namespace fusor::cpu {

// The extents and strides (in elements) of an activation [N,C,H,W] in memory,
// as groups of contiguous channels: one channel per group if row-major, all
// channels in one group if channels-last.
struct Activation {
  int64_t images, groups, channels, height, width;
  int64_t image_step, group_step, row_step, column_step;
};
Activation ActivationOf(const ir::TensorType& type);

// Splits channels into groups of one where only one of the two has contiguous
// channels: those of a row-major 1x1 image are contiguous.
void Align(Activation& a, Activation& b);

}  // namespace fusor::cpu
