#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fusor::ir {

// Element types. A bool occupies one byte (0 or 1) in memory.
enum class DType : uint8_t { kF64, kF32, kF16, kBF16, kI32, kI64, kU8, kBool };

inline constexpr DType kAllDTypes[] = {DType::kF64,  DType::kF32, DType::kF16,
                                       DType::kBF16, DType::kI32, DType::kI64,
                                       DType::kU8,   DType::kBool};

// "f64", "f32", "f16", "bf16", "i32", "i64", "u8", "bool".
std::string_view DTypeName(DType dtype);
std::optional<DType> ParseDType(std::string_view name);

int64_t DTypeSize(DType dtype);  // bytes per element
bool IsFloat(DType dtype);

// Rounds `x` to `dtype`. Floats: to nearest even; overflow gives infinity, NaN
// stays NaN. Integers: truncation and wrap-around; NaN and infinities give 0.
// bool: x != 0. Exact for values that `dtype` can represent.
double RoundTo(DType dtype, double x);

// Convert float to and from bits of IEEE binary16 and bfloat16; round to
// nearest even. Those of bfloat16 are inline: loops over elements call them.
float HalfToFloat(uint16_t bits);
uint16_t FloatToHalf(float x);
inline float BFloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
inline uint16_t FloatToBFloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return static_cast<uint16_t>((x == x ? rounded : bits | 0x400000) >> 16);
}

}  // namespace fusor::ir
