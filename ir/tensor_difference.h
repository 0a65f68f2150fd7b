#pragma once

#include <cstdint>

#include "ir/interpreter.h"

namespace fusor::ir {

// How far two tensors are apart.
struct TensorDifference {
  int64_t differing = 0;  // elements with other bits; NaNs are all alike
  // Greatest over all elements; infinite where only one of two is NaN, or an
  // infinity meets anything else.
  double max_abs = 0;
  double max_relative = 0;  // |actual - expected| / |expected|
  double max_ulp = 0;       // in units of the last place of `expected`
  // max_abs by the greatest finite |expected|; what a tolerance is for: single
  // small elements of a sum may well have lost all their digits.
  double scaled = 0;
  int64_t worst = -1;  // element of max_abs, row-major; -1 where none differs
  double actual = 0;   // at `worst`
  double expected = 0;
};

// REQUIRES: equal shapes. Units of the last place are of expected's dtype.
TensorDifference Difference(const Tensor& actual, const Tensor& expected);

// Size of the last place of `x` in `dtype`, subnormal numbers included; 1 for
// integers and bool.
double UnitInLastPlace(DType dtype, double x);

}  // namespace fusor::ir
