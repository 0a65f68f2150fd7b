#include "runtime/train/mixup.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/testing/chi_squared.h"

namespace fusor::runtime {
namespace {

TEST(Mixup, WithoutAlphaNothingIsMixed) {
  EXPECT_EQ(MixupCoefficient(0, 7, 3), 1);
}

// Beta(a, a) has mean 1/2 and variance 1 / (4 (2 a + 1)). The standard error of
// the sample variance is below `variance` * sqrt(2 / n).
TEST(Mixup, CoefficientsHaveTheMomentsOfBeta) {
  constexpr int64_t kDraws = 20000;
  for (double alpha : {0.05, 0.2, 1.0, 4.0}) {
    const double variance = 1 / (4 * (2 * alpha + 1));
    double sum = 0, squares = 0;
    for (int64_t step = 0; step < kDraws; ++step) {
      const double c = MixupCoefficient(alpha, 7, step);
      ASSERT_GE(c, 0);
      ASSERT_LE(c, 1);
      sum += c;
      squares += (c - 0.5) * (c - 0.5);
    }
    const double n = kDraws;
    EXPECT_NEAR(sum / n, 0.5, 5 * std::sqrt(variance / n)) << alpha;
    EXPECT_NEAR(squares / n, variance, 5 * variance * std::sqrt(2 / n))
        << alpha;
  }
}

// The share of Beta(1, 1) below x is x. That of Beta(1/2, 1/2) is 2 / pi
// asin(sqrt(x)).
TEST(Mixup, CoefficientsHaveTheDistributionOfBeta) {
  constexpr int kDraws = 20000;
  for (double x : {0.01, 0.2, 0.5, 0.9}) {
    int flat = 0, arcsine = 0;
    for (int step = 0; step < kDraws; ++step) {
      flat += MixupCoefficient(1, 1, step) < x ? 1 : 0;
      arcsine += MixupCoefficient(0.5, 2, step) < x ? 1 : 0;
    }
    const double tolerance = 5 * std::sqrt(0.25 / kDraws);
    EXPECT_NEAR(flat / double{kDraws}, x, tolerance);
    EXPECT_NEAR(arcsine / double{kDraws}, 2 / M_PI * std::asin(std::sqrt(x)),
                tolerance);
  }
}

TEST(Mixup, CoefficientsDependOnSeedAndStepAlone) {
  EXPECT_EQ(MixupCoefficient(0.2, 1, 5), MixupCoefficient(0.2, 1, 5));
  EXPECT_NE(MixupCoefficient(0.2, 1, 5), MixupCoefficient(0.2, 1, 6));
  EXPECT_NE(MixupCoefficient(0.2, 1, 5), MixupCoefficient(0.2, 2, 5));
}

TEST(CutMix, BoxesHaveTorchvisionsAreasAndCentres) {
  // Beta(1, 1) is uniform. The centre is uniform, too.
  constexpr int kSide = 1000;
  std::vector<double> areas;
  std::vector<double> centres;
  for (int step = 0; step < 20000; ++step) {
    const Mix mix = DrawMix({.cutmix = 1}, 3, step, kSide);
    ASSERT_TRUE(0 <= mix.left && mix.left <= mix.right && mix.right <= kSide);
    ASSERT_TRUE(0 <= mix.top && mix.top <= mix.bottom && mix.bottom <= kSide);
    const double width = mix.right - mix.left;
    const double height = mix.bottom - mix.top;
    EXPECT_DOUBLE_EQ(mix.share, 1 - width * height / (kSide * kSide));
    // The border of the image cuts off neither side of these boxes.
    const bool whole = mix.left > 0 && mix.right < kSide && mix.top > 0 &&
                       mix.bottom < kSide && width == height;
    if (whole) areas.push_back(width / kSide);
    if (mix.left > 0 && mix.right < kSide && width > 0) {
      centres.push_back((mix.left + mix.right) / 2.0);
    }
  }
  // A box of side s = sqrt(1 - c) is whole with probability (1 - s)^2, so its
  // side has the density 12 s (1 - s)^2.
  const auto share_below = [](double s) {
    return 6 * s * s - 8 * s * s * s + 3 * s * s * s * s;
  };
  constexpr int kBins = 20;
  std::vector<double> shares;
  for (int i = 0; i < kBins; ++i) {
    shares.push_back(share_below((i + 1.0) / kBins) -
                     share_below(i / double{kBins}));
  }
  // Joins the last bins, which are nearly empty.
  std::vector<int64_t> counts = testing::CountInBins(areas, 0, 1, kBins);
  while (shares.back() < 1e-3) {
    shares[shares.size() - 2] += shares.back();
    counts[counts.size() - 2] += counts.back();
    shares.pop_back();
    counts.pop_back();
  }
  EXPECT_LT(testing::ChiSquaredRatio(counts, shares), 1);
  double sum = 0;
  for (const double centre : centres) sum += centre;
  EXPECT_NEAR(sum / static_cast<double>(centres.size()), kSide / 2.0, 10);
}

TEST(CutMix, StepsSwitchBetweenMixupAndCutMix) {
  for (const double probability : {0.0, 0.25, 0.5, 1.0}) {
    int cut = 0;
    for (int step = 0; step < 4000; ++step) {
      const MixOptions options = {
          .mixup = 0.2, .cutmix = 1, .switch_probability = probability};
      const Mix mix = DrawMix(options, 3, step, 1 << 20);
      cut += mix.right > mix.left ? 1 : 0;
      if (mix.right == 0) {
        EXPECT_EQ(mix.share, MixupCoefficient(0.2, 3, step));
      }
    }
    EXPECT_NEAR(cut / 4000.0, probability, 0.04);
  }
}

TEST(CutMix, AloneItIsUsedInEveryStep) {
  for (int step = 0; step < 100; ++step) {
    const Mix mix =
        DrawMix({.cutmix = 1, .switch_probability = 0}, 1, step, 1 << 20);
    EXPECT_GT(mix.right, mix.left);
  }
  EXPECT_EQ(DrawMix({}, 1, 2, 8).share, 1);
}

}  // namespace
}  // namespace fusor::runtime
