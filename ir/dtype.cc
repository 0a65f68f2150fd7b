#include "ir/dtype.h"

#include <bit>
#include <cmath>

#include "ir/support/error.h"

namespace fusor::ir {
namespace {

struct DTypeRow {
  std::string_view name;
  int64_t size;
  bool is_float;
};

constexpr DTypeRow kDTypes[] = {
    {"f64", 8, true},  {"f32", 4, true},  {"f16", 2, true}, {"bf16", 2, true},
    {"i32", 4, false}, {"i64", 8, false}, {"u8", 1, false}, {"bool", 1, false}};

const DTypeRow& Row(DType dtype) { return kDTypes[static_cast<int>(dtype)]; }

// Rounds a double once to `mantissa` fraction bits and a minimum exponent of
// `min_exponent`. Adding and subtracting 1.5 * 2^52 units in the last place
// makes the addition round to such units, to nearest even.
double RoundMantissa(double x, int mantissa, int min_exponent, double max) {
  const int exponent =
      static_cast<int>(std::bit_cast<uint64_t>(x) >> 52 & 0x7ff) - 1023;
  if (exponent == 1024) return x;  // infinite or NaN
  const int ulp = std::max(exponent, min_exponent) - mantissa;
  if (ulp > 1023 - 53) return std::copysign(INFINITY, x);
  const double magic =
      1.5 * std::bit_cast<double>(static_cast<uint64_t>(ulp + 52 + 1023) << 52);
  const double rounded = std::fabs((x + magic) - magic);
  return std::copysign(rounded > max ? INFINITY : rounded, x);
}

template <typename T>
double Wrap(double x) {
  if (!std::isfinite(x)) return 0;
  // The remainder is exact and keeps the low 64 bits. The cast needs |x| <
  // 2^63.
  x = std::remainder(std::trunc(x), 0x1p64);
  if (x == 0x1p63) x = -x;
  return static_cast<double>(static_cast<T>(static_cast<int64_t>(x)));
}

}  // namespace

std::string_view DTypeName(DType dtype) { return Row(dtype).name; }

std::optional<DType> ParseDType(std::string_view name) {
  for (DType dtype : kAllDTypes) {
    if (Row(dtype).name == name) return dtype;
  }
  return std::nullopt;
}

int64_t DTypeSize(DType dtype) { return Row(dtype).size; }
bool IsFloat(DType dtype) { return Row(dtype).is_float; }

double RoundTo(DType dtype, double x) {
  switch (dtype) {
    case DType::kF64:
      return x;
    case DType::kF32:
      return static_cast<float>(x);
    case DType::kF16:
      return RoundMantissa(x, 10, -14, 65504);
    case DType::kBF16:
      return RoundMantissa(x, 7, -126, 0x1.fep127);
    case DType::kI32:
      return Wrap<int32_t>(x);
    case DType::kI64:
      return Wrap<int64_t>(x);
    case DType::kU8:
      return Wrap<uint8_t>(x);
    case DType::kBool:
      return x != 0 ? 1 : 0;
  }
  FUSOR_ASSERT(false, "dtype {}", static_cast<int>(dtype));
}

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0x1f) {
    return std::bit_cast<float>(sign | 0x7f800000 | (mantissa << 13));
  }
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) |
                              (mantissa << 13));
}

uint16_t FloatToHalf(float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return sign | 0x7e00;
  const double rounded = std::fabs(RoundTo(DType::kF16, x));
  if (std::isinf(rounded)) return sign | 0x7c00;
  if (rounded < 0x1p-14) {
    return sign | static_cast<uint16_t>(std::ldexp(rounded, 24));
  }
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(rounded));
  return sign | static_cast<uint16_t>((((bits >> 23) - 112) << 10) |
                                      ((bits >> 13) & 0x3ff));
}

}  // namespace fusor::ir
