#include "runtime/train/lr_schedule.h"

#include <gmock/gmock.h>

#include <cmath>
#include <utility>
#include <vector>

#include "ir/support/error.h"

namespace fusor::runtime {
namespace {

using Kind = LrScheduleKind;

TEST(LrSchedule, WarmsUpFromTheFirstStepToThePeak) {
  for (const std::string& name : LrScheduleNames()) {
    const LrScheduleOptions options{.kind = ParseLrSchedule(name),
                                    .base = 0.8,
                                    .warmup = 4,
                                    .total = 12,
                                    .milestones = {6}};
    for (int64_t step = 0; step < 4; ++step) {
      EXPECT_DOUBLE_EQ(LearningRate(options, step),
                       0.2 * static_cast<double>(step + 1))
          << name;
    }
    EXPECT_DOUBLE_EQ(LearningRate(options, 4), 0.8) << name;
  }
}

TEST(LrSchedule, FollowsItsCurveToTheEnd) {
  LrScheduleOptions o{
      .base = 1.1, .warmup = 2, .total = 10, .end = 0.1, .power = 3};
  const auto at = [&](Kind kind, int64_t step) {
    o.kind = kind;
    return LearningRate(o, step);
  };
  EXPECT_DOUBLE_EQ(at(Kind::kLinear, 4), 0.1 + 0.75);
  EXPECT_DOUBLE_EQ(at(Kind::kPolynomial, 4), 0.1 + 0.75 * 0.75 * 0.75);
  EXPECT_DOUBLE_EQ(at(Kind::kCosine, 6), 0.1 + 0.5);
  EXPECT_DOUBLE_EQ(at(Kind::kConstant, 9), 1.1);
  for (Kind kind : {Kind::kLinear, Kind::kPolynomial, Kind::kCosine}) {
    EXPECT_NEAR(at(kind, 10), 0.1, 1e-15);
    EXPECT_NEAR(at(kind, 1000), 0.1, 1e-15);
  }
}

// Expects the rates of PyTorch's CosineAnnealingWarmRestarts(T_0=2, T_mult=3,
// eta_min=0.1) with two updates per epoch.
TEST(LrSchedule, RestartsWithLongerCycles) {
  const LrScheduleOptions o{.kind = Kind::kCosine,
                            .base = 1.1,
                            .warmup = 1,
                            .total = 5,
                            .end = 0.1,
                            .first_cycle = 4,
                            .cycle_factor = 3};
  const double half = 0.1 + 0.5;
  for (const auto& [update, rate] : std::vector<std::pair<int64_t, double>>{
           {0, 1.1}, {2, half}, {4, 1.1}, {10, half}, {16, 1.1}, {34, half}}) {
    EXPECT_DOUBLE_EQ(LearningRate(o, update + 1), rate) << update;
  }
  EXPECT_DOUBLE_EQ(LearningRate(o, 1 + 15),
                   0.1 + (1 + std::cos(M_PI * 11 / 12)) / 2);
}

TEST(LrSchedule, DropsAtMilestones) {
  const LrScheduleOptions o{
      .kind = Kind::kStep, .base = 1, .milestones = {3, 5, 5}, .gamma = 0.5};
  EXPECT_EQ(LearningRate(o, 2), 1);
  EXPECT_EQ(LearningRate(o, 3), 0.5);
  EXPECT_EQ(LearningRate(o, 5), 0.125);
}

// Expects lr_cosine_policy, lr_linear_policy and lr_step_policy of NVIDIA's
// script: the rate of epoch e of E with W epochs of warm-up.
TEST(LrSchedule, ByTheEpochItIsThatOfTheReference) {
  constexpr int64_t kEpochs = 90, kWarmup = 8, kSteps = 7;
  LrScheduleOptions o{.base = 1.024,
                      .steps_per_update = kSteps,
                      .warmup = kWarmup,
                      .total = kEpochs,
                      .milestones = {30, 60, 80}};
  for (int64_t step = 0; step < kEpochs * kSteps; ++step) {
    const int64_t e = step / kSteps;
    const double warm = 1.024 * static_cast<double>(e + 1) / kWarmup;
    const double t = static_cast<double>(e - kWarmup) / (kEpochs - kWarmup);
    o.kind = Kind::kCosine;
    EXPECT_DOUBLE_EQ(
        LearningRate(o, step),
        e < kWarmup ? warm : 0.5 * (1 + std::cos(M_PI * t)) * 1.024);
    o.kind = Kind::kLinear;
    EXPECT_NEAR(LearningRate(o, step), e < kWarmup ? warm : 1.024 * (1 - t),
                1e-15);
    o.kind = Kind::kStep;
    const int drops = (e >= 30) + (e >= 60) + (e >= 80);
    EXPECT_NEAR(LearningRate(o, step),
                e < kWarmup ? warm : 1.024 * std::pow(0.1, drops), 1e-15);
  }
}

TEST(LrSchedule, UnknownNamesAreRejectedWithTheKnown) {
  try {
    ParseLrSchedule("cosin");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    EXPECT_THAT(e.what(), ::testing::HasSubstr("linear, cosine, polynomial"));
  }
}

}  // namespace
}  // namespace fusor::runtime
