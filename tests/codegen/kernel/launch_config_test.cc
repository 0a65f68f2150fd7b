#include "codegen/kernel/launch_config.h"

#include <gtest/gtest.h>

namespace fusor::codegen {
namespace {

using ir::DType;

TEST(BlockShape, ThreadsAccess16BytesOfTheNarrowestTensor) {
  EXPECT_EQ(ThreadWidth({{"x", DType::kF32, 64}}), 4);
  EXPECT_EQ(ThreadWidth({{"x", DType::kF32, 64}, {"y", DType::kF16, 64}}), 8);
  EXPECT_EQ(ThreadWidth({{"x", DType::kF32, 64}, {"y", DType::kBool, 64}}), 8);
  // A single element is no tensor.
  EXPECT_EQ(ThreadWidth({{"x", DType::kF32, 64}, {"s", DType::kBF16, 1}}), 4);
}

TEST(BlockShape, LanesAreAPowerOfTwoWithinBounds) {
  EXPECT_EQ(LanesFor(3, 1, 256), 4);
  EXPECT_EQ(LanesFor(64, 1, 256), 64);
  EXPECT_EQ(LanesFor(65, 1, 256), 128);
  EXPECT_EQ(LanesFor(1000, 1, 256), 256);
  EXPECT_EQ(LanesFor(1, 8, 2048), 8);
}

TEST(BlockShape, LargestDivisors) {
  EXPECT_EQ(LargestDivisor(12, 5), 4);
  EXPECT_EQ(LargestDivisor(13, 5), 1);
  EXPECT_EQ(LargestDivisor(12, 100), 12);
  EXPECT_EQ(LargestDivisor(12, 0), 1);
}

}  // namespace
}  // namespace fusor::codegen
