#include "tests/testing/numeric.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/support/error.h"
#include "ir/support/philox.h"

namespace fusor::test {
namespace {

using ir::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns 0 for equal values and for two NaNs. Returns infinity if the values
// differ and one is NaN or infinite.
double Distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double distance = std::fabs(a - b);
  return std::isnan(distance) ? kInfinity : distance;
}

}  // namespace

Tensor MakeTensor(ir::TensorType type, std::vector<double> values) {
  FUSOR_ASSERT(type.num_elements() == static_cast<int64_t>(values.size()),
               "{} of {} values", ir::ToString(type), values.size());
  return {std::move(type), std::move(values)};
}

Tensor RandomTensor(const ir::TensorType& type, uint64_t seed, double low,
                    double high) {
  Tensor tensor{type, std::vector<double>(type.num_elements())};
  for (size_t i = 0; i < tensor.data.size(); ++i) {
    const double u = RandomUniform(seed, 0, 0, 0, i);
    double x = low + (high - low) * u;
    if (type.dtype == ir::DType::kBool) {
      x = u < 0.5 ? 0 : 1;
    } else if (!ir::IsFloat(type.dtype)) {
      x = std::floor(x);
    }
    tensor.data[i] = ir::RoundTo(type.dtype, x);
  }
  return tensor;
}

::testing::AssertionResult AllClose(const Tensor& actual,
                                    const Tensor& expected, double relative,
                                    double absolute) {
  if (actual.type.dtype != expected.type.dtype ||
      actual.type.shape != expected.type.shape ||
      actual.data.size() != expected.data.size()) {
    return ::testing::AssertionFailure()
           << ir::ToString(actual.type) << " of " << actual.data.size()
           << " elements, expected " << ir::ToString(expected.type);
  }
  double worst = 1;  // distance relative to the tolerance
  size_t where = actual.data.size();
  size_t count = 0;
  for (size_t i = 0; i < actual.data.size(); ++i) {
    const double distance = Distance(actual.data[i], expected.data[i]);
    if (distance == 0) continue;
    const double units =
        distance / (absolute + relative * std::fabs(expected.data[i]));
    if (units <= 1) continue;
    ++count;
    if (units > worst || where == actual.data.size()) {
      worst = units;
      where = i;
    }
  }
  if (count == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << fmt::format(
             "{} of {} elements differ, the worst at {}: {} instead of {}, {} "
             "times the tolerance",
             count, actual.data.size(), where, actual.data[where],
             expected.data[where], worst);
}

double MaxRelativeError(const Tensor& actual, const Tensor& expected) {
  FUSOR_ASSERT(actual.data.size() == expected.data.size(), "{} and {} elements",
               actual.data.size(), expected.data.size());
  double error = 0;
  double scale = 0;
  for (size_t i = 0; i < expected.data.size(); ++i) {
    error = std::max(error, Distance(actual.data[i], expected.data[i]));
    if (std::isfinite(expected.data[i])) {
      scale = std::max(scale, std::fabs(expected.data[i]));
    }
  }
  return scale == 0 ? error : error / scale;
}

}  // namespace fusor::test
