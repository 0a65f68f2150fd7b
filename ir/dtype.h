#pragma once

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
// nearest even.
float HalfToFloat(uint16_t bits);
uint16_t FloatToHalf(float x);
float BFloat16ToFloat(uint16_t bits);
uint16_t FloatToBFloat16(float x);

}  // namespace fusor::ir
