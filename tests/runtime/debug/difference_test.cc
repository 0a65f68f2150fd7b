#include "runtime/debug/difference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ir/dtype.h"

namespace fusor::runtime {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

Difference OfFloats(const std::vector<float>& a, const std::vector<float>& b) {
  const ir::TensorType type{
      ir::DType::kF32, {static_cast<int64_t>(a.size())}, {}};
  return CompareTensors(type, a.data(), type, b.data());
}

TEST(Difference, EqualBitsAreIdentical) {
  const Difference d = OfFloats({1, kNan, -0.0f}, {1, kNan, -0.0f});
  EXPECT_TRUE(d.bit_identical());
  EXPECT_EQ(d.elements, 3);
  EXPECT_EQ(d.max_abs, 0);
  EXPECT_EQ(d.max_ulp, 0);
  EXPECT_EQ(d.worst, -1);
}

TEST(Difference, ZerosOfBothSignsDifferInBitsAlone) {
  const Difference d = OfFloats({0.0f}, {-0.0f});
  EXPECT_FALSE(d.bit_identical());
  EXPECT_EQ(d.differing, 1);
  EXPECT_EQ(d.max_abs, 0);
  EXPECT_EQ(d.max_relative, 0);
  EXPECT_EQ(d.max_ulp, 0);
}

TEST(Difference, CountsRepresentableValuesBetween) {
  const float one = 1.0f;
  const float next = std::nextafter(one, 2.0f);
  EXPECT_EQ(OfFloats({one}, {std::nextafter(next, 2.0f)}).max_ulp, 2);
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(OfFloats({-tiny}, {tiny}).max_ulp, 2);
}

TEST(Difference, RelativeIsToTheGreatestMagnitude) {
  const Difference d = OfFloats({1e-6f, 4, -8}, {2e-6f, 4.5f, -8});
  EXPECT_EQ(d.differing, 2);
  EXPECT_FLOAT_EQ(static_cast<float>(d.max_abs), 0.5f);
  EXPECT_FLOAT_EQ(static_cast<float>(d.max_relative), 0.0625f);
  EXPECT_NEAR(d.relative, 0.5 / std::sqrt(80.0), 1e-7);
  EXPECT_EQ(d.worst, 1);
  EXPECT_EQ(d.first, 4);
  EXPECT_EQ(d.second, 4.5);
}

TEST(Difference, NanAgainstANumberIsInfinitelyFar) {
  const Difference d = OfFloats({1, 2}, {1, kNan});
  EXPECT_TRUE(std::isinf(d.max_abs));
  EXPECT_TRUE(std::isinf(d.max_ulp));
  EXPECT_EQ(d.worst, 1);
  EXPECT_TRUE(std::isinf(OfFloats({kInf}, {1}).max_abs));
  EXPECT_TRUE(std::isinf(OfFloats({0}, {1e-30f}).max_relative));
}

TEST(Difference, NarrowFloatsCountTheirOwnUlps) {
  const ir::TensorType half{ir::DType::kF16, {1}, {}};
  const uint16_t a = ir::FloatToHalf(1.0f);
  const uint16_t b = ir::FloatToHalf(1.0f + 1.0f / 1024);
  EXPECT_EQ(CompareTensors(half, &a, half, &b).max_ulp, 1);
  const ir::TensorType wide{ir::DType::kBF16, {1}, {}};
  const uint16_t c = ir::FloatToBFloat16(1.0f);
  const uint16_t d = ir::FloatToBFloat16(1.0f + 1.0f / 128);
  EXPECT_EQ(CompareTensors(wide, &c, wide, &d).max_ulp, 1);
}

TEST(Difference, IntegersDifferByTheirValues) {
  const ir::TensorType type{ir::DType::kI32, {2}, {}};
  const std::vector<int32_t> a{5, -3}, b{5, 4};
  const Difference d = CompareTensors(type, a.data(), type, b.data());
  EXPECT_EQ(d.differing, 1);
  EXPECT_EQ(d.max_abs, 7);
  EXPECT_EQ(d.max_ulp, 7);
}

// Logical [[0, 1, 2], [3, 4, 5]], and the same transposed in memory.
TEST(Difference, LooksThroughLayouts) {
  const ir::TensorType rows{ir::DType::kF32, {2, 3}, {}};
  const ir::TensorType columns{ir::DType::kF32, {2, 3}, {{1, 0}, {}}};
  const std::vector<float> a{0, 1, 2, 3, 4, 5};
  std::vector<float> b{0, 3, 1, 4, 2, 5};
  EXPECT_TRUE(
      CompareTensors(rows, a.data(), columns, b.data()).bit_identical());
  b[1] = 30;  // logical [1, 0]
  EXPECT_EQ(CompareTensors(rows, a.data(), columns, b.data()).worst, 3);
  std::vector<float> c = b;
  c[1] = 31;
  EXPECT_EQ(CompareTensors(columns, b.data(), columns, c.data()).worst, 3);
}

}  // namespace
}  // namespace fusor::runtime
