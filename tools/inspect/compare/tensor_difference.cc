#include "tools/inspect/compare/tensor_difference.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"

namespace fusor::inspect {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Fraction bits and the smallest normal exponent of a floating dtype.
struct FloatFormat {
  int fraction_bits;
  int min_exponent;
};

FloatFormat FormatOf(ir::DType dtype) {
  switch (dtype) {
    case ir::DType::kF64:
      return {52, -1022};
    case ir::DType::kF16:
      return {10, -14};
    case ir::DType::kBF16:
      return {7, -126};
    default:
      return {23, -126};
  }
}

// Returns the unbiased exponent of a double; for zero and fp64 subnormals a
// value below all others.
int ExponentOf(double x) {
  return static_cast<int>(std::bit_cast<uint64_t>(x) >> 52 & 0x7ff) - 1023;
}

bool SameElement(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

// Accumulates the differences of two tensors, given in any number of pieces.
class Meter {
 public:
  explicit Meter(ir::DType dtype) : dtype_(dtype) {}

  void Add(std::span<const double> first, std::span<const double> second) {
    for (size_t i = 0; i < first.size(); ++i) {
      const double a = first[i];
      if (std::isfinite(a)) {
        scale_ = std::max(scale_, std::abs(a));
        norm_ += a * a;
      }
      if (!SameElement(a, second[i])) AddDiffering(i, a, second[i]);
    }
    d_.elements += static_cast<int64_t>(first.size());
  }

  TensorDifference Take() {
    const auto ratio = [](double part, double whole) {
      return whole > 0 ? part / whole : part;
    };
    d_.max_relative = ratio(d_.max_abs, scale_);
    d_.relative = ratio(std::sqrt(distance_norm_), std::sqrt(norm_));
    return d_;
  }

 private:
  void AddDiffering(size_t i, double a, double b) {
    ++d_.differing;
    const bool finite = std::isfinite(a) && std::isfinite(b);
    const double distance = finite ? std::abs(a - b) : kInfinity;
    distance_norm_ += distance * distance;
    d_.max_ulp = std::max(d_.max_ulp, UlpDistance(dtype_, a, b));
    if (d_.worst >= 0 && distance <= d_.max_abs) return;
    d_.max_abs = distance;
    d_.worst = d_.elements + static_cast<int64_t>(i);
    d_.first = a;
    d_.second = b;
  }

  ir::DType dtype_;
  TensorDifference d_;
  double scale_ = 0, norm_ = 0, distance_norm_ = 0;
};

// Returns a range of a tensor's elements in memory order.
std::vector<double> Elements(ir::DType dtype, const void* memory, int64_t begin,
                             int64_t count) {
  const auto* bytes = static_cast<const char*>(memory);
  return ir::LoadTensor({dtype, {count}, {}},
                        bytes + begin * ir::DTypeSize(dtype))
      .data;
}

// Returns the row-major index of the element at an offset in memory.
int64_t LogicalIndex(const ir::TensorType& type, int64_t offset) {
  std::vector<int64_t> at(type.rank(), 0);
  for (const ir::PhysicalAxis& axis : ir::PhysicalAxes(type)) {
    at[axis.dim] += offset / axis.stride % axis.extent * axis.step;
  }
  int64_t index = 0;
  for (size_t d = 0; d < at.size(); ++d) index = index * type.shape[d] + at[d];
  return index;
}

}  // namespace

double UnitInLastPlace(ir::DType dtype, double x) {
  if (!ir::IsFloat(dtype)) return 1;
  const FloatFormat format = FormatOf(dtype);
  const int exponent = std::isfinite(x) ? ExponentOf(x) : format.min_exponent;
  return std::ldexp(
      1, std::max(exponent, format.min_exponent) - format.fraction_bits);
}

double UlpDistance(ir::DType dtype, double a, double b) {
  if (SameElement(a, b)) return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return kInfinity;
  const double ulp = std::abs(a - b) / UnitInLastPlace(dtype, a);
  const bool no_digit =
      ir::IsFloat(dtype) && ulp >= std::ldexp(1, FormatOf(dtype).fraction_bits);
  return no_digit ? kInfinity : ulp;
}

std::string ShowUlp(double ulp) {
  return std::isfinite(ulp) ? fmt::format("{:.3g}", ulp) : "-";
}

TensorDifference Difference(const ir::Tensor& first, const ir::Tensor& second) {
  FUSOR_ASSERT(first.data.size() == second.data.size(),
               "difference of {} and {} elements", first.data.size(),
               second.data.size());
  Meter meter(first.type.dtype);
  meter.Add(first.data, second.data);
  return meter.Take();
}

TensorDifference Difference(const ir::TensorType& first_type, const void* first,
                            const ir::TensorType& second_type,
                            const void* second) {
  FUSOR_ASSERT(first_type.dtype == second_type.dtype &&
                   first_type.shape == second_type.shape,
               "comparing {} with {}", ir::ToString(first_type),
               ir::ToString(second_type));
  if (first_type.layout != second_type.layout) {
    return Difference(ir::LoadTensor(first_type, first),
                      ir::LoadTensor(second_type, second));
  }
  const int64_t count = first_type.num_elements();
  if (std::memcmp(first, second, static_cast<size_t>(first_type.num_bytes())) ==
      0) {
    return {.elements = count};
  }
  constexpr int64_t kPart = 1 << 14;
  const ir::DType dtype = first_type.dtype;
  Meter meter(dtype);
  for (int64_t begin = 0; begin < count; begin += kPart) {
    const int64_t part = std::min(kPart, count - begin);
    meter.Add(Elements(dtype, first, begin, part),
              Elements(dtype, second, begin, part));
  }
  TensorDifference d = meter.Take();
  if (d.worst >= 0) d.worst = LogicalIndex(first_type, d.worst);
  return d;
}

}  // namespace fusor::inspect
