#include "ir/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace fusor::ir {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// A 16-bit floating-point format.
struct Format {
  DType dtype;
  float (*decode)(uint16_t);
  uint16_t (*encode)(float);
  uint16_t infinity;  // its bit pattern; greater patterns are NaN
};

const Format kFormats[] = {
    {DType::kF16, HalfToFloat, FloatToHalf, 0x7c00},
    {DType::kBF16, BFloat16ToFloat, FloatToBFloat16, 0x7f80}};

class SixteenBit : public ::testing::TestWithParam<Format> {};

TEST_P(SixteenBit, EveryPatternSurvivesTheRoundTrip) {
  const Format& f = GetParam();
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto pattern = static_cast<uint16_t>(bits);
    const float x = f.decode(pattern);
    if ((bits & 0x7fff) > f.infinity) {
      ASSERT_TRUE(std::isnan(x)) << bits;
      const uint16_t back = f.encode(x);
      ASSERT_GT(back & 0x7fff, f.infinity) << bits;
      ASSERT_EQ(back & 0x8000, bits & 0x8000) << bits;
    } else {
      ASSERT_EQ(f.encode(x), pattern) << bits;
      ASSERT_EQ(std::signbit(x), bits >= 0x8000) << bits;
    }
  }
}

TEST_P(SixteenBit, PatternsAreInTheOrderOfTheirValues) {
  const Format& f = GetParam();
  EXPECT_EQ(f.decode(0), 0);
  EXPECT_EQ(f.decode(f.infinity), kInf);
  for (uint16_t bits = 0; bits < f.infinity; ++bits) {
    ASSERT_LT(f.decode(bits), f.decode(bits + 1)) << bits;
    ASSERT_EQ(f.decode(bits | 0x8000), -f.decode(bits)) << bits;
  }
}

// Between two neighbours, the midpoint rounds to the even pattern, and values
// next to it to the nearer neighbour. Instead of infinity, the successor of the
// largest finite value is the next power of two.
TEST_P(SixteenBit, RoundToTakesTheNearestAndTiesToEven) {
  const Format& f = GetParam();
  for (uint16_t bits = 0; bits < f.infinity; ++bits) {
    const double low = f.decode(bits);
    const double high = bits + 1 == f.infinity ? 2 * low - f.decode(bits - 1)
                                               : f.decode(bits + 1);
    const double above = f.decode(bits + 1);
    const double middle = (low + high) / 2;
    for (const double sign : {1.0, -1.0}) {
      const auto round = [&](double x) { return RoundTo(f.dtype, sign * x); };
      ASSERT_EQ(round(low), sign * low) << bits;
      ASSERT_EQ(round(middle), sign * (bits % 2 == 0 ? low : above)) << bits;
      ASSERT_EQ(round(std::nextafter(middle, 0)), sign * low) << bits;
      ASSERT_EQ(round(std::nextafter(middle, kInf)), sign * above) << bits;
      const double exact = round(middle);
      ASSERT_EQ(std::signbit(exact), sign < 0) << bits;
    }
    if (static_cast<float>(middle) != middle) continue;
    ASSERT_EQ(f.encode(static_cast<float>(middle)),
              bits % 2 == 0 ? bits : bits + 1);
  }
}

TEST_P(SixteenBit, RoundToKeepsSpecialValues) {
  const DType dtype = GetParam().dtype;
  EXPECT_EQ(RoundTo(dtype, kInf), kInf);
  EXPECT_EQ(RoundTo(dtype, -kInf), -kInf);
  EXPECT_EQ(RoundTo(dtype, 1e300), kInf);
  EXPECT_EQ(RoundTo(dtype, -1e300), -kInf);
  EXPECT_TRUE(std::isnan(RoundTo(dtype, NAN)));
  EXPECT_EQ(RoundTo(dtype, 5e-324), 0);
  EXPECT_TRUE(std::signbit(RoundTo(dtype, -5e-324)));
  EXPECT_TRUE(std::signbit(RoundTo(dtype, -0.0)));
}

INSTANTIATE_TEST_SUITE_P(Formats, SixteenBit, ::testing::ValuesIn(kFormats),
                         [](const auto& test) {
                           return std::string(DTypeName(test.param.dtype));
                         });

TEST(DType, RoundToF32IsTheCastOfTheLanguage) {
  for (const double x : {0.1, 1e-42, 1e40, -0.0, 16777217.0}) {
    const auto expected = static_cast<double>(static_cast<float>(x));
    EXPECT_EQ(RoundTo(DType::kF32, x), expected);
  }
  EXPECT_EQ(RoundTo(DType::kF64, 0.1), 0.1);
}

TEST(DType, IntegersTruncateAndWrapAround) {
  EXPECT_EQ(RoundTo(DType::kI32, 2.9), 2);
  EXPECT_EQ(RoundTo(DType::kI32, -2.9), -2);
  EXPECT_EQ(RoundTo(DType::kI32, 2147483648.0), -2147483648.0);
  EXPECT_EQ(RoundTo(DType::kU8, 257), 1);
  EXPECT_EQ(RoundTo(DType::kU8, -1), 255);
  EXPECT_EQ(RoundTo(DType::kI64, -7.5), -7);
}

TEST(DType, IntegersKeepTheLowBitsOfNumbersBeyond64Bits) {
  EXPECT_EQ(RoundTo(DType::kI64, 0x1p63), -0x1p63);
  EXPECT_EQ(RoundTo(DType::kI64, -0x1p63), -0x1p63);
  EXPECT_EQ(RoundTo(DType::kI64, 0x1p64), 0);
  EXPECT_EQ(RoundTo(DType::kI64, 0x1p64 + 0x1p12), 0x1p12);
  EXPECT_EQ(RoundTo(DType::kI64, -0x1p63 - 0x1p11), 0x1p63 - 0x1p11);
  EXPECT_EQ(RoundTo(DType::kI32, 1e300), 0);
  EXPECT_EQ(RoundTo(DType::kI32, INFINITY), 0);
}

TEST(DType, BoolIsWhateverIsNotZero) {
  EXPECT_EQ(RoundTo(DType::kBool, 0), 0);
  EXPECT_EQ(RoundTo(DType::kBool, -0.0), 0);
  EXPECT_EQ(RoundTo(DType::kBool, 0.25), 1);
  EXPECT_EQ(RoundTo(DType::kBool, -3), 1);
  EXPECT_EQ(RoundTo(DType::kBool, NAN), 1);
}

TEST(DType, NamesParseBack) {
  for (const DType dtype : kAllDTypes) {
    EXPECT_EQ(ParseDType(DTypeName(dtype)), dtype);
    EXPECT_GE(DTypeSize(dtype), 1);
  }
  EXPECT_FALSE(ParseDType("f8").has_value());
  EXPECT_FALSE(ParseDType("").has_value());
}

}  // namespace
}  // namespace fusor::ir
