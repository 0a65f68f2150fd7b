#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codegen/autotune/search_space.h"

namespace fusor::codegen {
namespace {

using passes::ConvRewrite;
using ::testing::ElementsAre;

// Each saved byte counts as one nanosecond.
class DecideRewritesTest : public testing::Test {
 protected:
  void Add(std::string place, std::vector<ConvRewrite::Part> parts,
           int64_t saved_bytes = 0) {
    rewrites_.push_back(
        {std::move(place), std::move(parts), ir::DType::kF16, saved_bytes});
  }

  const std::map<ir::AutotuneResults::Key, RewriteDecision>& Decide() {
    const auto times = [this](const std::string& problem, ir::DType dtype) {
      EXPECT_EQ(dtype, ir::DType::kF16);
      const auto it = times_.find(problem);
      return it == times_.end() ? 0 : it->second;
    };
    decisions_ = DecideRewrites(rewrites_, times, 1);
    return decisions_;
  }
  std::vector<std::string> Taken() {
    std::vector<std::string> taken;
    for (const auto& [key, decision] : Decide()) {
      if (decision.taken) taken.push_back(key.first);
    }
    return taken;
  }
  std::optional<double> Saved(const std::string& problem) {
    return Decide().at({problem, ir::DType::kF16}).saved_ns;
  }

  std::map<std::string, double> times_;
  std::vector<ConvRewrite> rewrites_;
  std::map<ir::AutotuneResults::Key, RewriteDecision> decisions_;
};

TEST_F(DecideRewritesTest, CountsTheBytesThatKernelsNoLongerMove) {
  times_ = {{"a", 100}, {"a s", 130}, {"b", 100}, {"b s", 130}};
  Add("x", {{"a", "a s"}}, 40);
  Add("y", {{"b", "b s"}}, 20);
  EXPECT_THAT(Taken(), ElementsAre("a s"));
  EXPECT_EQ(Saved("a s"), 10);
  EXPECT_EQ(Saved("b s"), -10);
}

TEST_F(DecideRewritesTest, DecidesAboutAllLayersOfAProblemAtOnce) {
  times_ = {{"a", 100}, {"a s", 130}};
  Add("x", {{"a", "a s"}}, 50);
  Add("y", {{"a", "a s"}}, 20);
  EXPECT_EQ(Saved("a s"), 10);
  rewrites_[1].saved_bytes = 5;
  EXPECT_EQ(Saved("a s"), -5);
  EXPECT_THAT(Taken(), ElementsAre());
}

TEST_F(DecideRewritesTest, TakesAllConvolutionsOfARewriteOrNone) {
  times_ = {{"a", 100}, {"a p", 90}, {"w", 100}, {"w p", 120}};
  Add("x", {{"a", "a p"}, {"w", "w p"}}, 5);
  EXPECT_THAT(Taken(), ElementsAre());
  rewrites_[0].saved_bytes = 15;
  EXPECT_THAT(Taken(), ElementsAre("a p", "w p"));
}

// Statistics that cost more than they save pay if another rewrite builds on
// them.
TEST_F(DecideRewritesTest, CountsWhatBuildsOnIt) {
  times_ = {{"a", 100}, {"a s", 130}, {"a p s", 135}};
  Add("y", {{"a", "a s"}}, 20);
  Add("x", {{"a s", "a p s"}}, 20);
  EXPECT_THAT(Taken(), ElementsAre("a p s", "a s"));
  EXPECT_EQ(Saved("a s"), 5);
  times_["a p s"] = 145;
  EXPECT_THAT(Taken(), ElementsAre());
  EXPECT_EQ(Saved("a p s"), 5) << "over statistics, which are not worth it";
  EXPECT_EQ(Saved("a s"), -5);
}

TEST_F(DecideRewritesTest, ComparesWhatExcludesEachOther) {
  times_ = {{"d", 100}, {"d add", 110}, {"d norm", 140}};
  Add("sum", {{"d", "d add"}}, 20);   // saves 10
  Add("sum", {{"d", "d norm"}}, 45);  // saves 5
  EXPECT_THAT(Taken(), ElementsAre("d add"));
  times_["d add"] = 130;
  EXPECT_THAT(Taken(), ElementsAre("d norm"));
}

// Another form of the same convolutions, and statistics that build on it.
TEST_F(DecideRewritesTest, DecidesAboutAFormByWhatChoicesSayOfThePlainOne) {
  times_ = {{"a", 100}, {"w", 50}, {"b", 90}, {"v", 40}, {"b s", 95}};
  Add("y", {{"a", "b"}, {"w", "v"}}, -30);  // costs 10
  rewrites_[0].choice = "form";
  Add("z", {{"b", "b s"}}, 20);  // saves 15
  EXPECT_THAT(Taken(), ElementsAre("a", "b s"));
  EXPECT_EQ(Saved("a"), 5);
  const RewriteDecision form = Decide().at({"a", ir::DType::kF16});
  EXPECT_EQ(form.choice, "form");
  EXPECT_EQ(Decide().size(), 2u);
  times_["b s"] = 101;
  EXPECT_EQ(Saved("a"), -1);
  EXPECT_THAT(Taken(), ElementsAre());
}

TEST_F(DecideRewritesTest, ComparesAFormWithStatisticsOfThePlainOne) {
  times_ = {{"a", 100}, {"a s", 102}, {"b", 90}, {"b s", 95}};
  Add("y", {{"a", "a s"}}, 20);  // saves 18
  Add("y", {{"a", "b"}}, -5);    // saves 5, and 15 by its statistics
  rewrites_[1].choice = "form";
  Add("z", {{"b", "b s"}}, 20);
  EXPECT_EQ(Saved("a"), 2);
  times_["a s"] = 99;
  EXPECT_EQ(Saved("a"), -1);
  EXPECT_THAT(Taken(), ElementsAre("a s"));
}

TEST_F(DecideRewritesTest, DeclinesWhatWasNotMeasured) {
  times_ = {{"a", 100}, {"b s", 1}};
  Add("x", {{"a", "a s"}}, 1000);
  Add("y", {{"b", "b s"}}, 1000);
  EXPECT_THAT(Taken(), ElementsAre());
  EXPECT_EQ(Decide().size(), 2u);
  EXPECT_EQ(Saved("a s"), std::nullopt);
}

}  // namespace
}  // namespace fusor::codegen
