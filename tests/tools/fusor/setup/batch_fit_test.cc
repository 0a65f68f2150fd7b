#include "tools/fusor/setup/batch_fit.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace fusor::tools {
namespace {

TEST(FittingBatch, IsTheLargestOfAPlanThatGrowsEvenly) {
  int calls = 0;
  const auto needed = [&](int64_t batch) {
    ++calls;
    return 1000 + 7 * batch;
  };
  EXPECT_EQ(FittingBatch(1 << 20, 8000, needed), 1000);
  EXPECT_LE(calls, 6);
  EXPECT_EQ(FittingBatch(500, 8000, needed), 499);
  EXPECT_EQ(FittingBatch(2, 8000, needed), 1);
}

TEST(FittingBatch, FitsIfThePlanGrowsInSteps) {
  for (int64_t step : {3, 16, 40}) {
    const auto needed = [&](int64_t batch) {
      return 500 + 90 * ((batch + step - 1) / step) * step + batch;
    };
    for (int64_t free : {5000, 50000, 1000000}) {
      const int64_t fits = FittingBatch(1 << 20, free, needed);
      EXPECT_LE(needed(fits), free) << step << " " << free;
      EXPECT_GT(needed(2 * fits + step), free) << step << " " << free;
    }
  }
}

TEST(FittingBatch, IsNoneIfNotEvenOneImageFits) {
  const auto needed = [](int64_t batch) { return 1000 + batch; };
  EXPECT_EQ(FittingBatch(64, 1000, needed), 0);
  EXPECT_EQ(FittingBatch(1, 5000, needed), 0);
}

TEST(LargestBatch, IsTheLastThatFits) {
  for (int64_t step : {1, 3, 16, 40}) {
    int calls = 0;
    const auto needed = [&](int64_t batch) {
      ++calls;
      return 500 + 90 * ((batch + step - 1) / step) * step + batch;
    };
    for (int64_t free : {5000, 50000, 1000000}) {
      calls = 0;
      const int64_t fits = LargestBatch(free, needed);
      EXPECT_LE(calls, 24);
      EXPECT_LE(needed(fits), free) << step << " " << free;
      EXPECT_GT(needed(fits + 1), free) << step << " " << free;
    }
  }
}

TEST(LargestBatch, MayBeNoneOrAnySize) {
  const auto needed = [](int64_t batch) { return 1000 + batch; };
  EXPECT_EQ(LargestBatch(1000, needed), 0);
  EXPECT_EQ(LargestBatch(1001, needed), 1);
  EXPECT_EQ(LargestBatch(int64_t{1} << 40, needed), kLargestBatch);
}

}  // namespace
}  // namespace fusor::tools
