#include "runtime/debug/difference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ir/dtype.h"
#include "ir/support/error.h"

namespace fusor::runtime {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// An element: its value, and its place among the representable values, so that
// neighbours are one apart.
template <typename Bits>
int64_t Place(Bits bits) {
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  const auto magnitude = static_cast<int64_t>(bits & ~kSign);
  return (bits & kSign) != 0 ? -magnitude : magnitude;
}

struct F32 {
  using Bits = uint32_t;
  static double Value(Bits bits) { return std::bit_cast<float>(bits); }
  static int64_t Order(Bits bits) { return Place(bits); }
};
struct F64 {
  using Bits = uint64_t;
  static double Value(Bits bits) { return std::bit_cast<double>(bits); }
  static int64_t Order(Bits bits) { return Place(bits); }
};
struct F16 {
  using Bits = uint16_t;
  static double Value(Bits bits) { return ir::HalfToFloat(bits); }
  static int64_t Order(Bits bits) { return Place(bits); }
};
struct BF16 {
  using Bits = uint16_t;
  static double Value(Bits bits) { return ir::BFloat16ToFloat(bits); }
  static int64_t Order(Bits bits) { return Place(bits); }
};
template <typename T>
struct Integer {
  using Bits = T;
  static double Value(Bits bits) { return static_cast<double>(bits); }
  static int64_t Order(Bits bits) { return bits; }
};

double UlpDistance(double a, double b, int64_t order_a, int64_t order_b) {
  if (std::isnan(a) || std::isnan(b)) {
    return std::isnan(a) && std::isnan(b) ? 0 : kInfinity;
  }
  return std::abs(static_cast<double>(order_a) - static_cast<double>(order_b));
}

double AbsDistance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double distance = std::abs(a - b);
  return std::isnan(distance) ? kInfinity : distance;
}

// `worst` is the element offset in memory.
template <typename Element>
Difference CompareElements(const void* a, const void* b, int64_t count) {
  using Bits = typename Element::Bits;
  const auto* pa = static_cast<const Bits*>(a);
  const auto* pb = static_cast<const Bits*>(b);
  Difference d;
  d.elements = count;
  double scale = 0, norm = 0, distance_norm = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double x = Element::Value(pa[i]);
    if (std::isfinite(x)) scale = std::max(scale, std::abs(x));
    norm += x * x;
    if (pa[i] == pb[i]) continue;
    ++d.differing;
    const double y = Element::Value(pb[i]);
    d.max_ulp = std::max(d.max_ulp, UlpDistance(x, y, Element::Order(pa[i]),
                                                Element::Order(pb[i])));
    const double distance = AbsDistance(x, y);
    distance_norm += distance * distance;
    if (distance <= d.max_abs && d.worst >= 0) continue;
    d.max_abs = distance;
    d.worst = i;
    d.first = x;
    d.second = y;
  }
  const auto ratio = [](double part, double whole) {
    return part == 0 ? 0 : whole > 0 ? part / whole : kInfinity;
  };
  d.max_relative = ratio(d.max_abs, scale);
  d.relative = ratio(std::sqrt(distance_norm), std::sqrt(norm));
  return d;
}

Difference CompareBytes(ir::DType dtype, const void* a, const void* b,
                        int64_t count) {
  switch (dtype) {
    case ir::DType::kF64:
      return CompareElements<F64>(a, b, count);
    case ir::DType::kF32:
      return CompareElements<F32>(a, b, count);
    case ir::DType::kF16:
      return CompareElements<F16>(a, b, count);
    case ir::DType::kBF16:
      return CompareElements<BF16>(a, b, count);
    case ir::DType::kI32:
      return CompareElements<Integer<int32_t>>(a, b, count);
    case ir::DType::kI64:
      return CompareElements<Integer<int64_t>>(a, b, count);
    case ir::DType::kU8:
    case ir::DType::kBool:
      return CompareElements<Integer<uint8_t>>(a, b, count);
  }
  FUSOR_ASSERT(false, "dtype {}", static_cast<int>(dtype));
}

// The row-major index of the element at an offset in memory.
int64_t LogicalIndex(const ir::TensorType& type, int64_t offset) {
  std::vector<int64_t> at(type.rank(), 0);
  for (const ir::PhysicalAxis& axis : PhysicalAxes(type)) {
    at[axis.dim] += offset / axis.stride % axis.extent * axis.step;
  }
  int64_t index = 0;
  for (size_t d = 0; d < at.size(); ++d) index = index * type.shape[d] + at[d];
  return index;
}

// The bytes of a tensor in row-major order.
std::vector<char> RowMajor(const ir::TensorType& type, const void* memory) {
  const std::vector<int64_t> offsets = PhysicalOffsets(type);
  const auto size = static_cast<size_t>(ir::DTypeSize(type.dtype));
  std::vector<char> bytes(offsets.size() * size);
  const auto* from = static_cast<const char*>(memory);
  for (size_t i = 0; i < offsets.size(); ++i) {
    std::memcpy(&bytes[i * size], from + offsets[i] * size, size);
  }
  return bytes;
}

}  // namespace

Difference CompareTensors(const ir::TensorType& type_a, const void* a,
                          const ir::TensorType& type_b, const void* b) {
  FUSOR_ASSERT(type_a.dtype == type_b.dtype && type_a.shape == type_b.shape,
               "comparing {} with {}", ToString(type_a), ToString(type_b));
  const int64_t count = type_a.num_elements();
  if (type_a.layout != type_b.layout) {
    const std::vector<char> rows_a = RowMajor(type_a, a);
    const std::vector<char> rows_b = RowMajor(type_b, b);
    return CompareBytes(type_a.dtype, rows_a.data(), rows_b.data(), count);
  }
  if (std::memcmp(a, b, static_cast<size_t>(type_a.num_bytes())) == 0) {
    return {.elements = count};
  }
  Difference d = CompareBytes(type_a.dtype, a, b, count);
  if (d.worst >= 0) d.worst = LogicalIndex(type_a, d.worst);
  return d;
}

}  // namespace fusor::runtime
