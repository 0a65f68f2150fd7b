#include "tools/fusor/setup/auto_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "ir/support/error.h"

namespace fusor::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

const std::vector<AutoDimension> kSpace = {
    {"precision", {"fp32", "amp"}, {{}, {{"--amp", ""}}}},
    {"winograd", {"on", "off"}, {{}, {{"--winograd", "off"}}}},
    {"batch",
     {"8", "16", "32", "64"},
     {{{"--batch-size", "8"}},
      {{"--batch-size", "16"}},
      {{"--batch-size", "32"}},
      {{"--batch-size", "64"}}},
     /*ordered=*/true,
     /*start=*/2}};

// Speeds are products of one factor per dimension.
struct Machine {
  std::vector<std::vector<double>> factors;
  double model_error = 1;  // of all choices that are not the default
  double seconds = 1;      // per measurement
  double budget = 1000;
  double used = 0;
  int measured = 0;

  double Speed(const AutoPoint& point) const {
    double speed = 1;
    for (size_t d = 0; d < point.size(); ++d) speed *= factors[d][point[d]];
    return speed;
  }

  AutoResult Search() {
    return SearchAuto(
        kSpace,
        {.model =
             [&](const AutoPoint& point) {
               const bool first = point == AutoPoint{0, 0, 2};
               return AutoSpeed{Speed(point) * (first ? 1 : model_error)};
             },
         .measure =
             [&](const AutoPoint& point) {
               ++measured;
               used += seconds;
               return AutoSpeed{Speed(point)};
             },
         .seconds_left = [&] { return budget - used; },
         .stop = [] { return false; }});
  }

  double Exhaustive() const {
    double best = 0;
    for (size_t a = 0; a < 2; ++a) {
      for (size_t b = 0; b < 2; ++b) {
        for (size_t c = 0; c < 4; ++c) best = std::max(best, Speed({a, b, c}));
      }
    }
    return best;
  }
};

std::vector<int> Runs(const AutoResult& result) {
  std::vector<int> runs;
  for (const AutoTrial& trial : result.trials) {
    runs.push_back(trial.measurements);
  }
  return runs;
}

TEST(AutoSearch, FindsTheBestOfIndependentChoices) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> factor(0.8, 1.25);
  for (int trial = 0; trial < 200; ++trial) {
    // Speeds grow with the batch size up to a size, and fall then.
    std::vector<double> batches = {1, 1, 1, 1};
    const int top = static_cast<int>(random() % 4);
    for (int i = top - 1; i >= 0; --i) batches[i] = batches[i + 1] * 0.9;
    for (int i = top + 1; i < 4; ++i) batches[i] = batches[i - 1] * 0.9;
    Machine machine{{{1, factor(random)}, {1, factor(random)}, batches}};
    const AutoResult result = machine.Search();
    EXPECT_GE(machine.Speed(result.trials[result.best].point),
              0.98 * machine.Exhaustive());
    const std::vector<int> runs = Runs(result);
    EXPECT_LT(std::count_if(runs.begin(), runs.end(),
                            [](int count) { return count > 0; }),
              16);
  }
}

TEST(AutoSearch, SearchesAgainAtTheNewBatchSize) {
  // In 16 bit only the large batch is faster.
  Machine machine{{{1, 1}, {1, 0.9}, {0.7, 0.8, 1, 1.2}}};
  const auto speed = [&](const AutoPoint& p) {
    return machine.Speed(p) * (p[0] == 1 ? (p[2] == 3 ? 1.3 : 0.9) : 1);
  };
  const AutoResult result = SearchAuto(
      kSpace, {[&](const AutoPoint& p) { return AutoSpeed{speed(p)}; },
               [&](const AutoPoint& p) { return AutoSpeed{speed(p)}; },
               [] { return 100.0; }, [] { return false; }});
  EXPECT_THAT(result.trials[result.best].point, ElementsAre(1, 0, 3));
}

TEST(AutoSearch, TheModelDecidesBetweenCloseMeasurements) {
  const AutoResult result = SearchAuto(
      kSpace, {[](const AutoPoint& p) {
                 const double batches[] = {1.2, 1.1, 1, 0.8};
                 return AutoSpeed{batches[p[2]]};
               },
               [](const AutoPoint& p) {
                 const double batches[] = {1.19, 1.2, 1, 0.8};
                 return AutoSpeed{batches[p[2]] * (p[0] + p[1] > 0 ? 0.7 : 1)};
               },
               [] { return 100.0; }, [] { return false; }});
  EXPECT_THAT(result.trials[result.best].point, ElementsAre(0, 0, 0));
}

TEST(AutoSearch, DoesNotTryASlowChoiceAgainAtTheNewBatchSize) {
  Machine machine{{{1, 1.3}, {1, 0.75}, {0.7, 0.8, 1, 1.2}}};
  const AutoResult result = machine.Search();
  EXPECT_THAT(result.trials[result.best].point, ElementsAre(1, 0, 3));
  EXPECT_TRUE(std::none_of(result.trials.begin(), result.trials.end(),
                           [](const AutoTrial& t) {
                             return t.point == AutoPoint{1, 1, 3};
                           }));
}

TEST(AutoSearch, DoesNotMeasureWhatTheModelFindsMuchSlower) {
  Machine machine{{{1, 0.5}, {1, 0.6}, {0.3, 0.5, 1, 1.1}}};
  const AutoResult result = machine.Search();
  EXPECT_THAT(Runs(result), ElementsAre(5, 0, 0, 5, 0, 0, 0));
  EXPECT_EQ(result.trials[1].verdict, "modelled 2.0x slower");
  EXPECT_FALSE(result.trials[1].measured.has_value());
}

TEST(AutoSearch, EndsInTime) {
  Machine machine{{{1, 1.1}, {1, 1.1}, {1, 1, 1, 1.1}},
                  1,
                  /*seconds=*/10,
                  /*budget=*/25};
  const AutoResult result = machine.Search();
  EXPECT_LE(machine.used, 25);
  EXPECT_EQ(machine.measured, 2);
  EXPECT_THAT(result.trials[result.best].point, ElementsAre(1, 0, 2));
  EXPECT_EQ(result.trials.back().verdict, "no time left");
}

TEST(AutoSearch, KeepsTimeToMeasureTheFastestAgain) {
  Machine machine{{{1, 1.1}, {1, 1.05}, {1, 1, 1, 1.1}},
                  1,
                  /*seconds=*/10,
                  /*budget=*/65};
  const AutoResult result = machine.Search();
  EXPECT_LE(machine.used, 65);
  // The larger size might take too long.
  EXPECT_THAT(Runs(result), ElementsAre(1, 1, 2, 0, 2, 0, 0));
  EXPECT_EQ(result.trials[1].verdict, "1.10x the default");
}

TEST(AutoSearch, ALargerSizeIsTriedIfTwiceTheTimeIsLeft) {
  for (const double budget : {76, 78}) {
    Machine machine{{{1, 0.9}, {1, 0.9}, {0.8, 0.9, 1, 1.1}}};
    double used = 0;
    const AutoResult result = SearchAuto(
        kSpace,
        {[&](const AutoPoint& p) { return AutoSpeed{machine.Speed(p)}; },
         [&](const AutoPoint& p) {
           used += p[2] == 3 ? 20 : 10;
           return AutoSpeed{machine.Speed(p)};
         },
         [&] { return budget - used; }, [] { return false; }});
    EXPECT_LE(used, budget);
    // Time is kept to measure two choices again: 0.35 of the budget.
    EXPECT_EQ(result.trials[3].verdict,
              budget > 77 ? "1.10x the default" : "no time left");
  }
}

// A measurement may be disturbed by another program.
TEST(AutoSearch, OneDisturbedMeasurementDoesNotDecide) {
  Machine machine{{{1, 0.95}, {1, 0.95}, {0.8, 0.9, 1, 1.02}}};
  for (int disturbed = 0; disturbed < 6; ++disturbed) {
    int count = 0;
    const auto measure = [&](const AutoPoint& p) {
      return AutoSpeed{machine.Speed(p) * (count++ == disturbed ? 0.8 : 1)};
    };
    const AutoResult result = SearchAuto(
        kSpace,
        {[&](const AutoPoint& p) { return AutoSpeed{machine.Speed(p)}; },
         measure, [] { return 100.0; }, [] { return false; }});
    EXPECT_THAT(result.trials[result.best].point, ElementsAre(0, 0, 3))
        << "measurement " << disturbed;
  }
}

// The model expects larger sizes to be faster, and is right.
TEST(AutoSearch, ADisturbedSizeDoesNotEndTheSearchOverSizes) {
  Machine machine{{{1, 0.95}, {1, 0.95}, {0.8, 1, 1.1, 1.2}}};
  int middle = 0;  // measurements of the size after the default
  const auto measure = [&](const AutoPoint& p) {
    const bool disturbed = p[2] == 2 && middle++ == 0;
    return AutoSpeed{machine.Speed(p) * (disturbed ? 0.6 : 1)};
  };
  std::vector<AutoDimension> space = kSpace;
  space[2].start = 1;
  const AutoResult result = SearchAuto(
      space, {[&](const AutoPoint& p) { return AutoSpeed{machine.Speed(p)}; },
              measure, [] { return 100.0; }, [] { return false; }});
  EXPECT_THAT(result.trials[result.best].point, ElementsAre(0, 0, 3));
  EXPECT_GE(middle, 2);
}

TEST(AutoSearch, GoesPastASizeThatIsALittleSlower) {
  Machine machine{{{1, 0.9}, {1, 0.9}, {1.2, 0.95, 1, 0.7}}};
  const AutoResult result = machine.Search();
  EXPECT_THAT(result.trials[result.best].point, ElementsAre(0, 0, 0));
}

TEST(AutoSearch, WhatCannotRunIsLeftOut) {
  const AutoQueries queries = {
      [](const AutoPoint& p) {
        return p[2] == 3 ? AutoSpeed{0, "needs 9 GiB, 4 are free"}
                         : AutoSpeed{1};
      },
      [](const AutoPoint& p) {
        return p[0] == 1 ? AutoSpeed{0, "killed"} : AutoSpeed{1};
      },
      [] { return 100.0; }, [] { return false; }};
  const AutoResult result = SearchAuto(kSpace, queries);
  EXPECT_EQ(result.best, 0u);
  const std::string table = AutoTable(kSpace, result);
  EXPECT_THAT(table, ::testing::HasSubstr("  needs 9 GiB, 4 are free\n"));
  EXPECT_THAT(table, ::testing::HasSubstr("-     1  killed\n"));
  EXPECT_THAT(table,
              ::testing::HasSubstr("*       fp32         on         32 "));
}

TEST(AutoSearch, ADefaultThatCannotRunIsAnError) {
  const AutoQueries queries = {[](const AutoPoint&) {
                                 return AutoSpeed{0, "no memory"};
                               },
                               [](const AutoPoint&) { return AutoSpeed{1}; },
                               [] { return 100.0; }, [] { return false; }};
  try {
    SearchAuto(kSpace, queries);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_STREQ(error.what(),
                 "--auto: the default cannot be measured: no memory");
  }
}

TEST(AutoSearch, StopsBeforeTheFirstTrial) {
  const AutoQueries queries = {[](const AutoPoint&) { return AutoSpeed{1}; },
                               [](const AutoPoint&) { return AutoSpeed{1}; },
                               [] { return 100.0; }, [] { return true; }};
  EXPECT_TRUE(SearchAuto(kSpace, queries).trials.empty());
}

TEST(AutoSearch, SettingsAreThoseOfThePoint) {
  EXPECT_THAT(SettingsOf(kSpace, {1, 0, 1}),
              ElementsAre(Pair("--amp", ""), Pair("--batch-size", "16")));
}

}  // namespace
}  // namespace fusor::tools
