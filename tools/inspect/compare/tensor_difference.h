#pragma once

#include <cstdint>
#include <string>

#include "ir/interpreter/interpreter.h"

namespace fusor::ir {

// How far a tensor is from another of its shape and dtype.
struct TensorDifference {
  int64_t elements = 0;
  int64_t differing = 0;  // elements of different bits; NaNs are all alike
  double max_abs = 0;     // infinity where only one of two is finite
  // max_abs by the greatest finite magnitude of the first tensor, or max_abs
  // where that is 0: what a tolerance is for. Single small elements of a sum
  // may well have lost all their digits.
  double max_relative = 0;
  // Of all elements together, likewise: root of sum (a-b)^2 by root of sum a^2.
  // Where
  // one ReLU in a million falls on the other side, max_abs is large and this
  // is not.
  double relative = 0;
  // Greatest distance in units of the last place of the first tensor's element.
  // Infinity where two elements have no digit in common: the distance is as
  // large as the first element (opposite signs, another magnitude), or one of
  // the two alone is NaN or infinite.
  double max_ulp = 0;
  int64_t worst = -1;            // row-major index of max_abs; -1 without
  double first = 0, second = 0;  // the elements there

  bool bit_identical() const { return differing == 0; }
};

// REQUIRES: equal dtypes and shapes. The elements need not be values of the
// dtype, as those of exact interpretation are not.
TensorDifference Difference(const Tensor& first, const Tensor& second);

// Of tensors in memory, whose layouts may differ: `first` and `second` hold the
// bytes of a tensor of each type. REQUIRES: equal dtypes and shapes.
TensorDifference Difference(const TensorType& first_type, const void* first,
                            const TensorType& second_type, const void* second);

// Size of the last place of `x` in `dtype`, subnormal numbers included; 1 for
// integers and bool.
double UnitInLastPlace(DType dtype, double x);

// Distance of `b` from `a` in units of the last place of `a`; infinity where
// they have no digit in common, as in TensorDifference::max_ulp.
double UlpDistance(DType dtype, double a, double b);
std::string ShowUlp(double ulp);  // "12.5"; "-" for infinity

}  // namespace fusor::ir
