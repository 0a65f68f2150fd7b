#include "runtime/data/augment/random_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "tests/testing/chi_squared.h"
#include "tests/testing/image_files.h"

namespace fusor::runtime {
namespace {

using ::fusor::testing::ChiSquaredRatio;
using ::fusor::testing::CountInBins;
using ::fusor::testing::MakePicture;

constexpr int kRandomDraws = 20000;
constexpr ImageSize kSize = {224, 224};

// Calls `draw` with the sequence of each of kRandomDraws samples.
void ForEachSample(RandomStream stream,
                   const std::function<void(RandomSequence&)>& draw) {
  for (int64_t sample = 0; sample < kRandomDraws; ++sample) {
    const SampleRandom random(/*seed=*/3, /*epoch=*/1, sample);
    RandomSequence sequence(random, stream);
    draw(sequence);
  }
}

// Returns the share of standard normal numbers below x.
double NormalShare(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }

TEST(RandomSequence, NumbersAreUniformAndNormal) {
  std::vector<double> uniform;
  std::vector<int64_t> integers(7);
  std::vector<int64_t> normal(8);
  std::vector<double> shares;
  for (int i = 0; i < 8; ++i) {
    const auto edge = [](int at) {
      return at == 0 ? 0.0 : at == 8 ? 1.0 : NormalShare((at - 4) * 0.5);
    };
    shares.push_back(edge(i + 1) - edge(i));
  }
  ForEachSample(RandomStream::kBlur, [&](RandomSequence& random) {
    uniform.push_back(random.Uniform(-1, 3));
    ++integers[random.Integer(7)];
    const double x = random.Normal();
    ++normal[std::clamp(static_cast<int>(std::floor(x / 0.5)) + 4, 0, 7)];
  });
  EXPECT_LT(ChiSquaredRatio(CountInBins(uniform, -1, 3, 50)), 1);
  EXPECT_LT(ChiSquaredRatio(integers), 1);
  EXPECT_LT(ChiSquaredRatio(normal, shares), 1);
}

TEST(RandomSequence, DependsOnSampleCopyEpochSeedAndStream) {
  const auto first = [](uint64_t seed, int64_t epoch, int64_t sample, int copy,
                        RandomStream stream) {
    const SampleRandom random(seed, epoch, sample, copy);
    return RandomSequence(random, stream).Uniform(0, 1);
  };
  const double base = first(1, 2, 3, 0, RandomStream::kGrey);
  EXPECT_EQ(base, first(1, 2, 3, 0, RandomStream::kGrey));
  EXPECT_NE(base, first(2, 2, 3, 0, RandomStream::kGrey));
  EXPECT_NE(base, first(1, 1, 3, 0, RandomStream::kGrey));
  EXPECT_NE(base, first(1, 2, 4, 0, RandomStream::kGrey));
  EXPECT_NE(base, first(1, 2, 3, 1, RandomStream::kGrey));
  EXPECT_NE(base, first(1, 2, 3, 0, RandomStream::kBlur));
}

TEST(RandomOps, JitterHasTorchvisionsFactorsInAnyOrder) {
  const RandomOpsOptions options = {
      .brightness = 0.4, .contrast = 0.2, .saturation = 1.5, .hue = 0.1};
  std::array<std::vector<double>, 4> values;
  std::map<std::array<JitterOp, 4>, int64_t> orders;
  ForEachSample(RandomStream::kColourJitter, [&](RandomSequence& random) {
    const Jitter jitter = DrawJitter(options, random);
    ++orders[jitter.order];
    for (size_t i = 0; i < 4; ++i) values[i].push_back(jitter.values[i]);
  });
  std::vector<int64_t> counts;
  for (const auto& [order, count] : orders) counts.push_back(count);
  ASSERT_EQ(counts.size(), 24);
  EXPECT_LT(ChiSquaredRatio(counts), 1);
  EXPECT_LT(ChiSquaredRatio(CountInBins(values[0], 0.6, 1.4, 20)), 1);
  EXPECT_LT(ChiSquaredRatio(CountInBins(values[1], 0.8, 1.2, 20)), 1);
  EXPECT_LT(ChiSquaredRatio(CountInBins(values[2], 0, 2.5, 20)), 1);
  EXPECT_LT(ChiSquaredRatio(CountInBins(values[3], -0.1, 0.1, 20)), 1);
}

TEST(RandomOps, LightingHasTheCovarianceOfImageNetsColours) {
  std::array<double, 3> sums = {};
  std::array<double, 3> squares = {};
  double red_green = 0;
  ForEachSample(RandomStream::kLighting, [&](RandomSequence& random) {
    const auto levels = DrawLighting(0.1, random);
    for (size_t c = 0; c < 3; ++c) {
      sums[c] += levels[c];
      squares[c] += levels[c] * levels[c];
    }
    red_green += levels[0] * levels[1];
  });
  // Variance of a channel: sum over the components of (0.1 value vector)^2.
  const double values[3] = {5.546, 0.4794, 0.1148};
  const double vectors[3][3] = {{-0.5675, 0.7192, 0.4009},
                                {-0.5808, -0.0045, -0.8140},
                                {-0.5836, -0.6948, 0.4203}};
  const auto covariance = [&](int a, int b) {
    double sum = 0;
    for (int i = 0; i < 3; ++i) {
      sum += values[i] * values[i] * vectors[a][i] * vectors[b][i];
    }
    return sum;
  };
  for (int c = 0; c < 3; ++c) {
    EXPECT_NEAR(sums[c] / kRandomDraws, 0, 0.12);
    EXPECT_NEAR(squares[c] / kRandomDraws, covariance(c, c),
                0.05 * covariance(c, c));
  }
  EXPECT_NEAR(red_green / kRandomDraws, covariance(0, 1),
              0.05 * covariance(0, 1));
}

TEST(RandomOps, ErasedRegionsHaveTorchvisionsAreasAndAspects) {
  std::vector<double> area;
  std::vector<double> log_aspect;
  std::vector<double> x;
  ForEachSample(RandomStream::kErasing, [&](RandomSequence& random) {
    // A large image, so that rounding does not matter.
    const auto region = DrawErasing({100000, 100000}, random);
    ASSERT_TRUE(region.has_value());
    const double w = region->width / 1e5;
    const double h = region->height / 1e5;
    area.push_back(w * h);
    log_aspect.push_back(std::log(h / w));
    x.push_back(region->x / (1e5 - region->width + 1));
    EXPECT_LE(region->y + region->height, 100000);
  });
  EXPECT_LT(ChiSquaredRatio(CountInBins(x, 0, 1, 20)), 1);
  // Regions that are too long are drawn again, so only those of small areas
  // have all aspects.
  std::vector<double> small_area;
  std::vector<double> small_aspect;
  for (size_t i = 0; i < area.size(); ++i) {
    if (area[i] > 0.29) continue;
    small_area.push_back(area[i]);
    small_aspect.push_back(log_aspect[i]);
  }
  EXPECT_LT(ChiSquaredRatio(CountInBins(small_area, 0.0199, 0.2901, 20)), 1);
  EXPECT_LT(ChiSquaredRatio(CountInBins(small_aspect, std::log(0.2999),
                                        std::log(3.3001), 20)),
            1);
}

TEST(RandomOps, ErasingCanFindNoRegion) {
  const SampleRandom random(1, 0, 0);
  RandomSequence sequence(random, RandomStream::kErasing);
  EXPECT_FALSE(DrawErasing({1, 1000}, sequence).has_value());
}

std::vector<ChosenOp> AllOps(AutoAugmentPolicy policy, int magnitude) {
  const AutoAugment augment(policy, magnitude, kSize);
  std::vector<ChosenOp> all;
  ForEachSample(RandomStream::kPolicy, [&](RandomSequence& random) {
    for (const ChosenOp& op : augment.Draw(random)) all.push_back(op);
  });
  return all;
}

TEST(RandomOps, RandAugmentDrawsTwoOpsOfOneMagnitude) {
  const std::vector<ChosenOp> all = AllOps(AutoAugmentPolicy::kRandAugment, 9);
  ASSERT_EQ(all.size(), 2 * kRandomDraws);
  std::map<AugmentOp, int64_t> ops;
  std::vector<int64_t> signs(2);
  for (const ChosenOp& op : all) {
    ++ops[op.op];
    if (op.op == AugmentOp::kRotate) {
      EXPECT_FLOAT_EQ(std::abs(op.magnitude), 9);
      ++signs[op.magnitude > 0 ? 1 : 0];
    }
    EXPECT_TRUE(op.op != AugmentOp::kPosterize || op.magnitude == 7);
  }
  std::vector<int64_t> counts;
  for (const auto& [op, count] : ops) counts.push_back(count);
  ASSERT_EQ(counts.size(), 14);
  EXPECT_LT(ChiSquaredRatio(counts), 1);
  EXPECT_LT(ChiSquaredRatio(signs), 1);
}

TEST(RandomOps, TrivialAugmentDrawsOneOpOfAnyMagnitude) {
  const std::vector<ChosenOp> all =
      AllOps(AutoAugmentPolicy::kTrivialAugmentWide, 0);
  ASSERT_EQ(all.size(), kRandomDraws);
  std::map<AugmentOp, int64_t> ops;
  std::vector<int64_t> bins(kMagnitudeBins);
  std::vector<int64_t> signs(2);
  for (const ChosenOp& op : all) {
    ++ops[op.op];
    if (op.op != AugmentOp::kRotate) continue;
    ++bins[static_cast<size_t>(std::lround(std::abs(op.magnitude) / 4.5))];
    if (op.magnitude != 0) ++signs[op.magnitude > 0 ? 1 : 0];
  }
  std::vector<int64_t> counts;
  for (const auto& [op, count] : ops) counts.push_back(count);
  ASSERT_EQ(counts.size(), 14);
  EXPECT_LT(ChiSquaredRatio(counts), 1);
  EXPECT_LT(ChiSquaredRatio(bins), 1);
  EXPECT_LT(ChiSquaredRatio(signs), 1);
}

TEST(RandomOps, AutoAugmentAppliesPairsByTheirProbabilities) {
  std::map<AugmentOp, double> expected;
  for (const PolicyPair& pair : ImageNetPairs()) {
    for (const PolicyStep& step : pair) {
      expected[step.op] +=
          step.probability / static_cast<double>(ImageNetPairs().size());
    }
  }
  const std::vector<ChosenOp> all = AllOps(AutoAugmentPolicy::kImageNet, 0);
  std::map<AugmentOp, int64_t> ops;
  for (const ChosenOp& op : all) ++ops[op.op];
  double total = 0;
  for (const auto& [op, share] : expected) total += share;
  EXPECT_NEAR(static_cast<double>(all.size()) / kRandomDraws, total, 0.03);
  std::vector<int64_t> counts;
  std::vector<double> shares;
  for (const auto& [op, share] : expected) {
    counts.push_back(ops[op]);
    shares.push_back(share / total);
  }
  EXPECT_LT(ChiSquaredRatio(counts, shares), 1);
}

// Returns the share of samples that the options change.
double ChangedShare(const RandomOpsOptions& options) {
  const Image picture = MakePicture(16, 16, 1);
  RandomOps ops(options, {16, 16});
  int changed = 0;
  constexpr int kSamples = 2000;
  for (int64_t sample = 0; sample < kSamples; ++sample) {
    std::vector<uint8_t> pixels = picture.pixels;
    ops.Apply(SampleRandom(5, 0, sample), pixels.data());
    changed += pixels != picture.pixels ? 1 : 0;
  }
  return changed / double{kSamples};
}

TEST(RandomOps, ProbabilitiesAreThoseOfTheOptions) {
  EXPECT_EQ(ChangedShare({}), 0);
  EXPECT_NEAR(ChangedShare({.grey = 0.2}), 0.2, 0.04);
  EXPECT_NEAR(ChangedShare({.erasing = 0.3}), 0.3, 0.05);
  // A blur by a small sigma changes no level.
  EXPECT_NEAR(ChangedShare({.blur = 0.5}), 0.5, 0.12);
  EXPECT_EQ(ChangedShare({.lighting = 100}), 1);
  EXPECT_GT(ChangedShare({.hue = 0.5}), 0.95);
  EXPECT_GT(ChangedShare({.brightness = 0.4}), 0.95);
}

TEST(RandomOps, ErasedRegionsHaveTheirColour) {
  const Image picture = MakePicture(16, 16, 1);
  RandomOps ops({.erasing = 1, .erased_colour = {1, 2, 3}}, {16, 16});
  std::vector<uint8_t> pixels = picture.pixels;
  ops.Apply(SampleRandom(5, 0, 0), pixels.data());
  int erased = 0;
  for (size_t i = 0; i < pixels.size(); i += 3) {
    if (std::equal(&pixels[i], &pixels[i] + 3, &picture.pixels[i])) continue;
    EXPECT_EQ((std::array<int, 3>{pixels[i], pixels[i + 1], pixels[i + 2]}),
              (std::array<int, 3>{1, 2, 3}));
    ++erased;
  }
  EXPECT_GT(erased, 3);
}

TEST(RandomOps, LightingAddsAndClips) {
  std::vector<uint8_t> pixels = {0, 100, 255, 250, 3, 1};
  AddLevels({pixels.data(), 2, 1}, {10.4, -4.6, 1});
  EXPECT_EQ(pixels, (std::vector<uint8_t>{10, 95, 255, 255, 0, 2}));
}

TEST(RandomOps, OptionsOutOfRangeAreRejected) {
  for (const RandomOpsOptions& options :
       std::vector<RandomOpsOptions>{{.magnitude = 31},
                                     {.magnitude = -1},
                                     {.brightness = -0.1},
                                     {.hue = 0.6},
                                     {.lighting = -1},
                                     {.grey = 1.1},
                                     {.erasing = -0.1}}) {
    EXPECT_THROW(CheckRandomOps(options), Error);
  }
  EXPECT_NO_THROW(CheckRandomOps({}));
}

}  // namespace
}  // namespace fusor::runtime
