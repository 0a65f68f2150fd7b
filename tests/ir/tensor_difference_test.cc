#include "ir/tensor_difference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/testing/numeric.h"

namespace fusor::ir {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TensorDifference DifferenceOf(DType dtype, std::vector<double> actual,
                              std::vector<double> expected) {
  const TensorType type{dtype, {static_cast<int64_t>(expected.size())}, {}};
  return Difference(test::MakeTensor(type, std::move(actual)),
                    test::MakeTensor(type, std::move(expected)));
}

TEST(TensorDifference, EqualTensorsDoNotDiffer) {
  const TensorDifference d =
      DifferenceOf(DType::kF32, {1, NAN, kInfinity}, {1, NAN, kInfinity});
  EXPECT_EQ(d.differing, 0);
  EXPECT_EQ(d.worst, -1);
  EXPECT_EQ(d.max_ulp, 0);
  EXPECT_EQ(d.scaled, 0);
}

TEST(TensorDifference, MeasuresAgainstElementAndScale) {
  const TensorDifference d =
      DifferenceOf(DType::kF64, {8, 0.5, -1}, {8, 0.25, -1.5});
  EXPECT_EQ(d.differing, 2);
  EXPECT_EQ(d.worst, 2);
  EXPECT_EQ(d.actual, -1);
  EXPECT_EQ(d.expected, -1.5);
  EXPECT_EQ(d.max_abs, 0.5);
  EXPECT_EQ(d.max_relative, 1);
  EXPECT_EQ(d.scaled, 0.0625);
}

TEST(TensorDifference, CountsUnitsInTheLastPlaceOfTheDtype) {
  EXPECT_EQ(DifferenceOf(DType::kF32, {1 + 0x1p-23}, {1}).max_ulp, 1);
  EXPECT_EQ(DifferenceOf(DType::kF16, {1 + 0x1p-9}, {1}).max_ulp, 2);
  EXPECT_EQ(DifferenceOf(DType::kBF16, {2 + 0x1p-6}, {2}).max_ulp, 1);
  EXPECT_EQ(DifferenceOf(DType::kF32, {0x1p-149}, {0}).max_ulp, 1);
  EXPECT_EQ(DifferenceOf(DType::kI32, {7}, {4}).max_ulp, 3);
}

TEST(TensorDifference, ANaNOrInfinityOnOneSideIsInfinitelyFar) {
  for (const auto& [a, e] : {std::pair(NAN, 1.0),
                             {1.0, double{NAN}},
                             {kInfinity, 1.0},
                             {1.0, -kInfinity}}) {
    const TensorDifference d = DifferenceOf(DType::kF32, {2, a}, {2, e});
    EXPECT_EQ(d.differing, 1);
    EXPECT_EQ(d.worst, 1);
    EXPECT_EQ(d.max_abs, kInfinity);
    EXPECT_EQ(d.max_relative, kInfinity);
    EXPECT_EQ(d.max_ulp, kInfinity);
    EXPECT_EQ(d.scaled, kInfinity);
  }
}

TEST(TensorDifference, ZerosOfTwoSignsDifferByNothing) {
  const TensorDifference d = DifferenceOf(DType::kF32, {-0.0}, {0.0});
  EXPECT_EQ(d.differing, 1);
  EXPECT_EQ(d.max_abs, 0);
  EXPECT_EQ(d.max_relative, 0);
}

}  // namespace
}  // namespace fusor::ir
