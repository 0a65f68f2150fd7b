#pragma once

#include <cstdint>

#include "ir/tensor_type.h"

namespace fusor::runtime {

// How far two tensors of one shape and dtype are apart.
struct Difference {
  int64_t elements = 0;
  int64_t differing = 0;  // elements of different bits
  double max_abs = 0;     // infinity where only one of them is finite
  // max_abs by the greatest finite magnitude of the first tensor; element by
  // element it would tell about values near 0 alone.
  double max_relative = 0;
  // Of all elements together: root of sum (a-b)^2 by root of sum a^2. Where
  // one ReLU in a million falls on the other side, max_abs is large and this
  // is not.
  double relative = 0;
  // Greatest number of representable values between two elements, +0 and -0
  // being one. Infinity where one of them alone is NaN.
  double max_ulp = 0;
  int64_t worst = -1;            // row-major index of max_abs; -1 without
  double first = 0, second = 0;  // the elements there

  bool bit_identical() const { return differing == 0; }
};

// REQUIRES: equal dtypes and shapes; layouts may differ. `a` and `b` hold the
// bytes of a tensor of each type.
Difference CompareTensors(const ir::TensorType& type_a, const void* a,
                          const ir::TensorType& type_b, const void* b);

}  // namespace fusor::runtime
