#include "runtime/train/mixup.h"

#include <gtest/gtest.h>

#include <cmath>

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

}  // namespace
}  // namespace fusor::runtime
