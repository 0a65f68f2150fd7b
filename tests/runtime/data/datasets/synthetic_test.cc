#include "runtime/data/datasets/synthetic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "ir/support/error.h"

namespace fusor::runtime {
namespace {

std::vector<uint8_t> Images(const Batch& batch) {
  return {batch.images().begin(), batch.images().end()};
}

TEST(Synthetic, IsAFunctionOfSeedAndRank) {
  const auto make = [](uint64_t seed, int rank) {
    SyntheticSource source({.batch_size = 3,
                            .image_size = 9,
                            .seed = seed,
                            .rank = rank,
                            .world_size = 2});
    return Images(source.Next());
  };
  EXPECT_EQ(make(1, 0), make(1, 0));
  EXPECT_NE(make(1, 0), make(2, 0));
  EXPECT_NE(make(1, 0), make(1, 1));
}

TEST(Synthetic, RanksShareOutTheSamplesOfOneRank) {
  SyntheticSource both({.batch_size = 4, .image_size = 8});
  const Batch& all = both.Next();
  for (int rank = 0; rank < 2; ++rank) {
    SyntheticSource one(
        {.batch_size = 2, .image_size = 8, .rank = rank, .world_size = 2});
    const Batch& part = one.Next();
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(part.labels[i], all.labels[2 * i + rank]);
      const auto image = part.images().subspan(192 * i, 192);
      const auto expected = all.images().subspan(192 * (2 * i + rank), 192);
      EXPECT_TRUE(std::equal(image.begin(), image.end(), expected.begin()));
    }
  }
}

TEST(Synthetic, LabelsAndLevelsAreSpreadOut) {
  SyntheticSource source(
      {.batch_size = 200, .image_size = 16, .num_classes = 10});
  const Batch& batch = source.Next();
  EXPECT_EQ(std::set<int32_t>(batch.labels.begin(), batch.labels.end()).size(),
            10);
  EXPECT_EQ(*std::max_element(batch.labels.begin(), batch.labels.end()), 9);
  EXPECT_EQ(*std::min_element(batch.weights.begin(), batch.weights.end()), 1);
  double sum = 0;
  for (const uint8_t level : batch.images()) sum += level;
  EXPECT_NEAR(sum / static_cast<double>(batch.images().size()), 127.5, 1);
}

TEST(Synthetic, CountsEpochsAndRepeatsItsBatches) {
  SyntheticSource source(
      {.batch_size = 2, .image_size = 4, .samples = 7, .distinct_batches = 2});
  EXPECT_EQ(source.batches_per_epoch(), 3);
  const std::vector<uint8_t> first = Images(source.Next());
  EXPECT_NE(Images(source.Next()), first);
  EXPECT_EQ(Images(source.Next()), first);
  const Batch& fourth = source.Next();
  EXPECT_EQ(fourth.epoch, 1);
  EXPECT_EQ(fourth.index, 0);
}

TEST(Synthetic, SenselessOptionsAreRejected) {
  EXPECT_THROW(SyntheticSource({.batch_size = 0}), Error);
  EXPECT_THROW(SyntheticSource({.batch_size = 1, .num_classes = 0}), Error);
  EXPECT_THROW(SyntheticSource({.batch_size = 1, .rank = 1}), Error);
}

}  // namespace
}  // namespace fusor::runtime
