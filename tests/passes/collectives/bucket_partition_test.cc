#include "passes/collectives/bucket_partition.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "ir/support/error.h"

namespace fusor::passes {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Returns the end time of the best partition with each number of buckets, by
// trying all partitions.
std::vector<double> BruteForce(const std::vector<ReadyGradient>& gradients,
                               const CollectiveCost& cost) {
  const size_t n = gradients.size();
  std::vector<double> best(n + 1, std::numeric_limits<double>::infinity());
  for (uint32_t cuts = 0; cuts < 1u << (n - 1); ++cuts) {
    double end = 0;
    int64_t bytes = 0;
    size_t buckets = 0;
    for (size_t i = 0; i < n; ++i) {
      bytes += gradients[i].bytes;
      if (i + 1 < n && (cuts >> i & 1) == 0) continue;
      end = std::max(end, gradients[i].ready) + cost.Seconds(bytes);
      bytes = 0;
      ++buckets;
    }
    best[buckets] = std::min(best[buckets], end);
  }
  return best;
}

struct Instance {
  std::vector<ReadyGradient> gradients;
  CollectiveCost cost;
  double slack = 0;
};

Instance RandomInstance(std::mt19937& random) {
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  Instance instance;
  double ready = uniform(0, 1e-2);
  const int count = std::uniform_int_distribution<int>(1, 12)(random);
  for (int i = 0; i < count; ++i) {
    // Gradients of one step are ready at the same time.
    if (random() % 4 != 0) ready += std::exp(uniform(-12, -4));
    instance.gradients.push_back(
        {ready, static_cast<int64_t>(std::exp(uniform(0, 17)))});
  }
  const auto algorithm = [&] {
    return AlphaBeta{std::exp(uniform(-12, -6)), 1 / uniform(1e9, 1e11)};
  };
  instance.cost.algorithms.push_back(algorithm());
  if (random() % 2 == 0) instance.cost.algorithms.push_back(algorithm());
  if (random() % 2 == 0) instance.slack = uniform(0, 2e-3);
  return instance;
}

TEST(BucketPartition, EqualsBruteForceOnTenThousandInstances) {
  std::mt19937 random(1);
  for (int i = 0; i < 10000; ++i) {
    const Instance instance = RandomInstance(random);
    const std::vector<double> best =
        BruteForce(instance.gradients, instance.cost);
    const double optimum = *std::min_element(best.begin(), best.end());
    size_t fewest = 1;
    while (best[fewest] > optimum + instance.slack) ++fewest;
    const auto buckets = PartitionGradients(instance.gradients, instance.cost,
                                            {.slack_seconds = instance.slack});
    ASSERT_EQ(buckets.size(), fewest) << "instance " << i;
    ASSERT_EQ(buckets.back().end, best[fewest]) << "instance " << i;
  }
}

TEST(BucketPartition, BucketsFollowEachOtherAndHoldAllGradients) {
  std::mt19937 random(2);
  for (int i = 0; i < 200; ++i) {
    const Instance instance = RandomInstance(random);
    for (const char* name : {"exact", "cap:0.1", "apex", "horovod", "one"}) {
      int next = 0;
      double free = 0;
      for (const GradientBucket& bucket :
           PartitionGradients(instance.gradients, instance.cost,
                              ParseBucketPolicy("--p", name))) {
        ASSERT_EQ(bucket.first, next);
        ASSERT_LT(bucket.first, bucket.last);
        int64_t bytes = 0;
        for (next = bucket.first; next < bucket.last; ++next) {
          bytes += instance.gradients[next].bytes;
        }
        ASSERT_EQ(bucket.bytes, bytes);
        ASSERT_EQ(bucket.ready, instance.gradients[next - 1].ready);
        ASSERT_GE(bucket.start, std::max(free, bucket.ready));
        ASSERT_DOUBLE_EQ(bucket.end,
                         bucket.start + instance.cost.Seconds(bytes));
        free = bucket.end;
      }
      ASSERT_EQ(next, static_cast<int>(instance.gradients.size()));
    }
  }
}

const CollectiveCost kCheap{{{1e-6, 1e-12}}};

std::vector<int64_t> Sizes(const std::vector<ReadyGradient>& gradients,
                           const char* policy) {
  std::vector<int64_t> sizes;
  for (const GradientBucket& bucket : PartitionGradients(
           gradients, kCheap, ParseBucketPolicy("--p", policy))) {
    sizes.push_back(bucket.bytes);
  }
  return sizes;
}

TEST(BucketPartition, ACapClosesABucketOnceItIsReached) {
  const std::vector<ReadyGradient> gradients = {
      {0.1, 600'000}, {0.2, 600'000}, {0.3, 2'000'000}, {0.4, 100}};
  EXPECT_THAT(Sizes(gradients, "cap:1"),
              ::testing::ElementsAre(1'200'000, 2'000'000, 100));
  EXPECT_THAT(Sizes(gradients, "one"), ::testing::ElementsAre(3'200'100));
}

TEST(BucketPartition, ApexCountsElements) {
  const std::vector<ReadyGradient> gradients = {{0.1, 20'000'000},
                                                {0.2, 20'000'000}};
  EXPECT_THAT(Sizes(gradients, "apex"), ::testing::ElementsAre(40'000'000));
  BucketPolicy half = ParseBucketPolicy("--p", "apex");
  half.element_bytes = 2;
  EXPECT_EQ(PartitionGradients(gradients, kCheap, half).size(), 2u);
}

TEST(BucketPartition, HorovodSendsWhatIsReadyAtEachTick) {
  const std::vector<ReadyGradient> gradients = {
      {0.001, 10}, {0.004, 20}, {0.006, 40 << 20}, {0.009, 40 << 20}};
  const auto buckets = PartitionGradients(gradients, kCheap,
                                          ParseBucketPolicy("--p", "horovod"));
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].bytes, 30);
  EXPECT_DOUBLE_EQ(buckets[0].start, 0.005);
  EXPECT_DOUBLE_EQ(buckets[1].start, 0.010);
  EXPECT_EQ(buckets[1].last, 3);  // two would exceed 64 MiB
  EXPECT_DOUBLE_EQ(buckets[2].start, buckets[1].end);
}

TEST(BucketPartition, NoGradientsMakeNoBuckets) {
  EXPECT_TRUE(PartitionGradients({}, kCheap, {}).empty());
}

TEST(BucketPartition, PoliciesAreNamedAsTheyAreRead) {
  for (const char* name :
       {"exact", "cap:25", "cap:0.5", "apex", "horovod", "one"}) {
    EXPECT_EQ(PolicyName(ParseBucketPolicy("--p", name)), name);
  }
  for (const char* name : {"", "cap", "cap:", "cap:x", "cap:-1", "cap:0",
                           "cap:25MB", "cap:inf", "cap:nan", "Exact"}) {
    EXPECT_THAT([&] { ParseBucketPolicy("--bucket-policy", name); },
                ThrowsMessage<Error>(HasSubstr(
                    "--bucket-policy: expected exact, cap:MB, apex, horovod or "
                    "one, got")))
        << name;
  }
}

}  // namespace
}  // namespace fusor::passes
