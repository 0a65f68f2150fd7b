#include "runtime/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "ir/support/error.h"

namespace fusor::runtime {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<int64_t> SamplesOf(const SamplerOptions& options, int64_t epoch,
                               int64_t index) {
  Sampler sampler(options);
  std::vector<int64_t> samples(options.batch_size);
  sampler.Batch(epoch, index, samples);
  return samples;
}

TEST(Sampler, ShuffleIsAPermutation) {
  for (const int64_t count : {1, 2, 3, 100, 1001}) {
    std::vector<int64_t> order = ShuffledOrder(count, 1, 2);
    std::sort(order.begin(), order.end());
    std::vector<int64_t> expected(count);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(order, expected);
  }
}

TEST(Sampler, ShuffleDependsOnSeedAndEpoch) {
  const std::set<std::vector<int64_t>> orders = {
      ShuffledOrder(50, 1, 0), ShuffledOrder(50, 1, 0), ShuffledOrder(50, 1, 1),
      ShuffledOrder(50, 2, 0)};
  EXPECT_EQ(orders.size(), 3);
}

TEST(Sampler, ShuffleGivesEveryOrderTheSameChance) {
  std::map<std::vector<int64_t>, int> counts;
  for (int epoch = 0; epoch < 6000; ++epoch) {
    ++counts[ShuffledOrder(3, 7, epoch)];
  }
  EXPECT_EQ(counts.size(), 6);
  // The mean is 1000, the standard deviation 29.
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 130);
}

TEST(Sampler, TrainingCoversTheOrderWithoutTheIncompleteBatch) {
  const SamplerOptions options = {
      .samples = 23, .batch_size = 3, .world_size = 2, .training = true};
  const std::vector<int64_t> order = ShuffledOrder(23, 0, 5);
  EXPECT_EQ(Sampler(options).batches_per_epoch(), 3);
  for (int64_t index = 0; index < 3; ++index) {
    std::set<int64_t> together;
    for (int rank = 0; rank < 2; ++rank) {
      SamplerOptions mine = options;
      mine.rank = rank;
      for (const int64_t sample : SamplesOf(mine, 5, index)) {
        together.insert(sample);
      }
    }
    EXPECT_EQ(together, std::set<int64_t>(order.begin() + 6 * index,
                                          order.begin() + 6 * index + 6));
  }
}

TEST(Sampler, GlobalBatchesDoNotDependOnTheNumberOfRanks) {
  const auto global = [](int world_size) {
    std::multiset<int64_t> samples;
    for (int rank = 0; rank < world_size; ++rank) {
      for (const int64_t sample : SamplesOf({.samples = 100,
                                  .batch_size = 12 / world_size,
                                  .rank = rank,
                                  .world_size = world_size,
                                  .training = true},
                                            3, 4)) {
        samples.insert(sample);
      }
    }
    return samples;
  };
  EXPECT_EQ(global(1), global(4));
  EXPECT_EQ(global(1), global(3));
}

TEST(Sampler, EvaluationKeepsTheOrderAndFillsUp) {
  SamplerOptions options = {.samples = 7, .batch_size = 2, .world_size = 2};
  EXPECT_EQ(Sampler(options).batches_per_epoch(), 2);
  EXPECT_THAT(SamplesOf(options, 0, 0), ElementsAre(0, 1));
  EXPECT_THAT(SamplesOf(options, 9, 1), ElementsAre(4, 5));
  options.rank = 1;
  EXPECT_THAT(SamplesOf(options, 0, 1), ElementsAre(6, -1));
}

TEST(Sampler, TooFewTrainingSamplesAreAnError) {
  EXPECT_THAT(
      [] {
        Sampler sampler({.samples = 15,
                         .batch_size = 8,
                         .world_size = 2,
                         .training = true});
      },
      ThrowsMessage<Error>(AllOf(HasSubstr("8 x 2 ranks"), HasSubstr("15"))));
  EXPECT_NO_THROW(Sampler({.samples = 15, .batch_size = 8, .world_size = 2}));
}

TEST(Sampler, SenselessOptionsAreRejected) {
  EXPECT_THROW(Sampler({.samples = 1, .batch_size = 0}), Error);
  EXPECT_THROW(Sampler({.samples = 0, .batch_size = 1}), Error);
  EXPECT_THROW(Sampler({.samples = 1, .batch_size = 1, .rank = 1}), Error);
}

// torchvision's RASampler gives rank r the positions r, r + world, ... of the
// repeated order. Its ranks together see the samples of a global batch of
// fusor.
TEST(Sampler, RepetitionsGiveTheGlobalBatchesOfRASampler) {
  constexpr int64_t kSetSize = 700;
  constexpr int kBatch = 10;
  for (const int repetitions : {1, 2, 3, 4}) {
    for (const int ranks : {1, 2, 3}) {
      const int64_t length = repetitions == 1 ? kSetSize : 512;
      std::vector<int64_t> repeated;
      for (const int64_t sample : ShuffledOrder(kSetSize, 4, 2)) {
        repeated.insert(repeated.end(), repetitions, sample);
      }
      for (int64_t index = 0; index < length / (kBatch * ranks); ++index) {
        std::map<std::pair<int64_t, int>, int> expected;
        for (int64_t i = 0; i < int64_t{kBatch} * ranks; ++i) {
          const int64_t position = index * kBatch * ranks + i;
          ++expected[{repeated[position],
                      static_cast<int>(position % repetitions)}];
        }
        std::map<std::pair<int64_t, int>, int> seen;
        for (int rank = 0; rank < ranks; ++rank) {
          Sampler sampler({.samples = kSetSize,
                           .batch_size = kBatch,
                           .rank = rank,
                           .world_size = ranks,
                           .training = true,
                           .seed = 4,
                           .repetitions = repetitions});
          EXPECT_EQ(sampler.batches_per_epoch(), length / (kBatch * ranks));
          std::vector<int64_t> samples(kBatch);
          sampler.Batch(2, index, samples);
          for (int i = 0; i < kBatch; ++i) {
            ++seen[{samples[i], sampler.Copy(index, i)}];
            // Mixup pairs neighbours.
            EXPECT_TRUE(i == 0 || samples[i] != samples[i - 1]);
          }
        }
        ASSERT_EQ(seen, expected) << repetitions << " " << ranks;
      }
    }
  }
}

TEST(Sampler, SmallSetsAreRepeatedWhole) {
  EXPECT_EQ(
      Sampler(
          {.samples = 30, .batch_size = 10, .training = true, .repetitions = 3})
          .batches_per_epoch(),
      3);
  EXPECT_THROW(Sampler({.samples = 30, .batch_size = 10, .repetitions = 3}),
               Error);
}

}  // namespace
}  // namespace fusor::runtime
