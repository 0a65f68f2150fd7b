#include "ir/tensor_difference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "ir/support/error.h"

namespace fusor::ir {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Fraction bits and the smallest normal exponent of a floating dtype.
struct FloatFormat {
  int fraction_bits;
  int min_exponent;
};

FloatFormat FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return {52, -1022};
    case DType::kF16:
      return {10, -14};
    case DType::kBF16:
      return {7, -126};
    default:
      return {23, -126};
  }
}

bool SameElement(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

}  // namespace

double UnitInLastPlace(DType dtype, double x) {
  if (!IsFloat(dtype)) return 1;
  const FloatFormat format = FormatOf(dtype);
  const int exponent =
      x == 0 || !std::isfinite(x) ? format.min_exponent : std::ilogb(x);
  return std::ldexp(
      1, std::max(exponent, format.min_exponent) - format.fraction_bits);
}

TensorDifference Difference(const Tensor& actual, const Tensor& expected) {
  FUSOR_ASSERT(actual.data.size() == expected.data.size(),
               "difference of {} and {} elements", actual.data.size(),
               expected.data.size());
  TensorDifference difference;
  double scale = 0;
  for (size_t i = 0; i < expected.data.size(); ++i) {
    const double a = actual.data[i];
    const double e = expected.data[i];
    if (std::isfinite(e)) scale = std::max(scale, std::abs(e));
    if (SameElement(a, e)) continue;
    ++difference.differing;
    const bool finite = std::isfinite(a) && std::isfinite(e);
    const double distance = finite ? std::abs(a - e) : kInfinity;
    const double relative = distance == 0 ? 0 : distance / std::abs(e);
    const double ulp =
        finite ? distance / UnitInLastPlace(expected.type.dtype, e) : kInfinity;
    difference.max_relative =
        std::max(difference.max_relative, finite ? relative : kInfinity);
    difference.max_ulp = std::max(difference.max_ulp, ulp);
    if (difference.worst < 0 || distance > difference.max_abs) {
      difference.max_abs = distance;
      difference.worst = static_cast<int64_t>(i);
      difference.actual = a;
      difference.expected = e;
    }
  }
  difference.scaled =
      scale > 0 ? difference.max_abs / scale : difference.max_abs;
  return difference;
}

}  // namespace fusor::ir
