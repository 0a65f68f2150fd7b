#include "tools/inspect/compare/tensor_difference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/testing/numeric.h"

namespace fusor::inspect {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TensorDifference DifferenceOf(ir::DType dtype, std::vector<double> first,
                              std::vector<double> second) {
  const ir::TensorType type{dtype, {static_cast<int64_t>(first.size())}, {}};
  return Difference(test::MakeTensor(type, std::move(first)),
                    test::MakeTensor(type, std::move(second)));
}

TensorDifference OfFloats(const std::vector<float>& a,
                          const std::vector<float>& b) {
  const ir::TensorType type{
      ir::DType::kF32, {static_cast<int64_t>(a.size())}, {}};
  return Difference(type, a.data(), type, b.data());
}

TEST(TensorDifference, EqualTensorsDoNotDiffer) {
  const TensorDifference d =
      DifferenceOf(ir::DType::kF32, {1, NAN, kInfinity}, {1, NAN, kInfinity});
  EXPECT_TRUE(d.bit_identical());
  EXPECT_EQ(d.elements, 3);
  EXPECT_EQ(d.worst, -1);
  EXPECT_EQ(d.max_abs, 0);
  EXPECT_EQ(d.max_ulp, 0);
  EXPECT_EQ(d.max_relative, 0);
}

TEST(TensorDifference, RelativeIsToTheLargestMagnitude) {
  const TensorDifference d =
      DifferenceOf(ir::DType::kF32, {1e-6, 4, -8}, {2e-6, 4.5, -8});
  EXPECT_EQ(d.differing, 2);
  EXPECT_EQ(d.max_abs, 0.5);
  EXPECT_EQ(d.max_relative, 0.0625);
  EXPECT_NEAR(d.relative, 0.5 / std::sqrt(80.0), 1e-7);
  EXPECT_EQ(d.worst, 1);
  EXPECT_EQ(d.first, 4);
  EXPECT_EQ(d.second, 4.5);
  EXPECT_EQ(DifferenceOf(ir::DType::kF64, {0}, {1e-30}).max_relative, 1e-30);
}

TEST(TensorDifference, CountsUnitsInTheLastPlaceOfTheDtype) {
  EXPECT_EQ(DifferenceOf(ir::DType::kF32, {1}, {1 + 0x1p-23}).max_ulp, 1);
  EXPECT_EQ(DifferenceOf(ir::DType::kF16, {1}, {1 + 0x1p-9}).max_ulp, 2);
  EXPECT_EQ(DifferenceOf(ir::DType::kBF16, {2}, {2 + 0x1p-6}).max_ulp, 1);
  EXPECT_EQ(DifferenceOf(ir::DType::kF32, {0}, {0x1p-149}).max_ulp, 1);
  EXPECT_EQ(DifferenceOf(ir::DType::kF64, {0}, {0x1p-1074}).max_ulp, 1);
  EXPECT_EQ(DifferenceOf(ir::DType::kI32, {4}, {7}).max_ulp, 3);
}

// The number of units would mean nothing: compared with 0, it is 1e37.
TEST(TensorDifference, ElementsWithoutACommonDigitAreInfinitelyManyUnitsApart) {
  for (const auto& [a, b] :
       {std::pair(0.0, 1e-8), {1.0, -1e-7}, {1e-30, 1.0}, {-2.0, 2.0}}) {
    const TensorDifference d = DifferenceOf(ir::DType::kF32, {3, a}, {3, b});
    EXPECT_EQ(d.max_ulp, kInfinity) << a << " " << b;
    EXPECT_LE(d.max_abs, 4);
    EXPECT_EQ(ShowUlp(d.max_ulp), "-");
  }
  EXPECT_EQ(DifferenceOf(ir::DType::kBF16, {1}, {1.5}).max_ulp, 64);
  EXPECT_EQ(DifferenceOf(ir::DType::kBF16, {1}, {2}).max_ulp, kInfinity);
  EXPECT_EQ(DifferenceOf(ir::DType::kI32, {1}, {-200}).max_ulp, 201);
  EXPECT_EQ(ShowUlp(201), "201");
}

TEST(TensorDifference, ANaNOrInfinityOnOneSideIsAnInfiniteDifference) {
  for (const auto& [a, b] : {std::pair(NAN, 1.0),
                             {1.0, double{NAN}},
                             {kInfinity, 1.0},
                             {1.0, -kInfinity}}) {
    const TensorDifference d = DifferenceOf(ir::DType::kF32, {2, a}, {2, b});
    EXPECT_EQ(d.differing, 1);
    EXPECT_EQ(d.worst, 1);
    EXPECT_EQ(d.max_abs, kInfinity);
    EXPECT_EQ(d.max_relative, kInfinity);
    EXPECT_EQ(d.max_ulp, kInfinity);
    EXPECT_EQ(d.relative, kInfinity);
  }
  EXPECT_EQ(DifferenceOf(ir::DType::kF32, {NAN}, {1}).max_relative, kInfinity);
}

TEST(TensorDifference, ZerosOfTwoSignsDifferOnlyInBits) {
  const TensorDifference d = DifferenceOf(ir::DType::kF32, {0.0}, {-0.0});
  EXPECT_EQ(d.differing, 1);
  EXPECT_EQ(d.max_abs, 0);
  EXPECT_EQ(d.max_relative, 0);
  EXPECT_EQ(d.max_ulp, 0);
}

TEST(TensorDifference, ReadsEveryDtypeInMemory) {
  const TensorDifference floats = OfFloats({1, -3, 0.5f}, {1, -3, 0.75f});
  EXPECT_EQ(floats.worst, 2);
  EXPECT_EQ(floats.max_abs, 0.25);
  const ir::TensorType half{ir::DType::kF16, {1}, {}};
  const uint16_t a = ir::FloatToHalf(1.0f),
                 b = ir::FloatToHalf(1.0f + 1.0f / 1024);
  EXPECT_EQ(Difference(half, &a, half, &b).max_ulp, 1);
  const ir::TensorType type{ir::DType::kI32, {2}, {}};
  const std::vector<int32_t> x{5, -3}, y{5, 4};
  EXPECT_EQ(Difference(type, x.data(), type, y.data()).max_abs, 7);
}

TEST(TensorDifference, SeesEveryElementOfALongTensorOnce) {
  std::vector<float> a(100'000, 2), b = a;
  b[50'000] = 3;
  b[99'999] = 2.5f;
  const TensorDifference d = OfFloats(a, b);
  EXPECT_EQ(d.elements, 100'000);
  EXPECT_EQ(d.differing, 2);
  EXPECT_EQ(d.worst, 50'000);
  EXPECT_NEAR(d.relative, std::sqrt(1.25 / 4e5), 1e-12);
}

// [[0, 1, 2], [3, 4, 5]], stored row-major and transposed.
TEST(TensorDifference, ComparesDifferentLayouts) {
  const ir::TensorType rows{ir::DType::kF32, {2, 3}, {}};
  const ir::TensorType columns{ir::DType::kF32, {2, 3}, {{1, 0}, {}}};
  const std::vector<float> a{0, 1, 2, 3, 4, 5};
  std::vector<float> b{0, 3, 1, 4, 2, 5};
  EXPECT_TRUE(Difference(rows, a.data(), columns, b.data()).bit_identical());
  b[1] = 30;  // element [1, 0]
  EXPECT_EQ(Difference(rows, a.data(), columns, b.data()).worst, 3);
  std::vector<float> c = b;
  c[1] = 31;
  EXPECT_EQ(Difference(columns, b.data(), columns, c.data()).worst, 3);
}

}  // namespace
}  // namespace fusor::inspect
