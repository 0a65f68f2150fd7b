#pragma once

#include <cstdint>
#include <string>

#include "ir/interpreter/interpreter.h"

namespace fusor::inspect {

// Difference of two tensors of equal shape and dtype.
struct TensorDifference {
  int64_t elements = 0;
  int64_t differing = 0;  // elements with other bits; NaNs are all equal
  double max_abs = 0;     // infinity if only one of two elements is finite
  // max_abs / largest finite magnitude of the first tensor, or max_abs if that
  // is 0. Suited to tolerances: small elements of a sum may have no correct
  // digits.
  double max_relative = 0;
  // L2 norm of the difference / L2 norm of the first tensor, or the former if
  // the latter is 0. Stays small if one ReLU in a million flips, unlike
  // max_abs.
  double relative = 0;
  // Greatest distance in units of the last place of the first tensor's element.
  // Infinity if two elements have no digit in common: the distance is as large
  // as the first element (opposite signs, other magnitude), or only one of them
  // is NaN or infinite.
  double max_ulp = 0;
  int64_t worst = -1;  // row-major index of max_abs; -1: no element differs
  double first = 0, second = 0;  // the elements at `worst`

  bool bit_identical() const { return differing == 0; }
};

// Compares `second` with `first`. REQUIRES: equal dtypes and shapes. Elements
// need not be representable in the dtype, e.g. after exact interpretation.
TensorDifference Difference(const ir::Tensor& first, const ir::Tensor& second);

// Compares tensors in memory, in possibly different layouts. `first` and
// `second` point to the bytes of a tensor of the given type. REQUIRES: equal
// dtypes and shapes.
TensorDifference Difference(const ir::TensorType& first_type, const void* first,
                            const ir::TensorType& second_type,
                            const void* second);

// Returns the unit in the last place of `x` in `dtype`, also for subnormals. 1
// for integers and bool.
double UnitInLastPlace(ir::DType dtype, double x);

// Returns |a - b| in units of the last place of `a`; infinity if they have no
// digit in common, as in TensorDifference::max_ulp.
double UlpDistance(ir::DType dtype, double a, double b);
std::string ShowUlp(double ulp);  // "12.5"; "-" for infinity

}  // namespace fusor::inspect
