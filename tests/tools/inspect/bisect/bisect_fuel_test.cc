#include <gtest/gtest.h>

#include "tools/inspect/bisect/bisect.h"

namespace fusor::inspect {
namespace {

const std::vector<passes::Application> kRewrites{
    {"simplify", "a", ""}, {"fuse_norm_activation", "b", ""},
    {"simplify", "c", ""}, {"fuse", "d", ""},
    {"fuse", "e", ""},
};

// Returns whether fuel permits the n-th of kRewrites (from 0), which makes the
// program fail.
bool Has(const Fuel& fuel, size_t n) {
  int64_t number = 0;
  for (size_t i = 0; i <= n; ++i) {
    number += kRewrites[i].pass == kRewrites[n].pass;
  }
  return fuel.at(kRewrites[n].pass) >= number;
}

TEST(BisectFuelTest, FindsEachRewriteByItsNumberInItsPass) {
  const int64_t numbers[] = {1, 1, 2, 1, 2};
  for (size_t n = 0; n < kRewrites.size(); ++n) {
    int runs = 0;
    const auto found = BisectFuel(kRewrites, [&](const Fuel& fuel) {
      ++runs;
      return Has(fuel, n);
    });
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->rewrite.subject, kRewrites[n].subject);
    EXPECT_EQ(found->application, numbers[n]);
    EXPECT_TRUE(Has(found->fuel, n));
    EXPECT_EQ(found->fuel.at("lower_batch_norm"), 0);
    EXPECT_FALSE(found->fuel.contains("autodiff"));
    EXPECT_LE(runs, 6);
  }
}

TEST(BisectFuelTest, ReportsThatNoRewriteIsNeeded) {
  const auto found = BisectFuel(kRewrites, [](const Fuel&) { return true; });
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->application, 0);
}

TEST(BisectFuelTest, FindsNothingInWhatIsGood) {
  EXPECT_FALSE(
      BisectFuel(kRewrites, [](const Fuel&) { return false; }).has_value());
}

}  // namespace
}  // namespace fusor::inspect
