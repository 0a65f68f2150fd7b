#include "runtime/train/training_loop.h"

#include <gmock/gmock.h>

#include <chrono>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "codegen/compiler.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "models/model.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/state_store.h"
#include "tools/inspect/observers/check_numerics.h"

namespace fusor::runtime {
namespace {

using ::testing::ElementsAre;

constexpr int kBatch = 2;
constexpr int kSide = 8;

// Slow batches, five per epoch.
class SlowSource : public BatchSource {
 public:
  explicit SlowSource(std::chrono::milliseconds wait)
      : wait_(wait), batch_(kBatch, kSide) {
    batch_.weights = {1, 1};
    batch_.labels = {0, 1};
    for (size_t i = 0; i < batch_.images().size(); ++i) {
      batch_.images()[i] = static_cast<uint8_t>(i * 37);
    }
  }
  int64_t batches_per_epoch() const override { return 5; }
  int num_classes() const override { return 2; }
  const Batch& Next() override {
    if (wait_.count() > 0) std::this_thread::sleep_for(wait_);
    stats_.wait_seconds += std::chrono::duration<double>(wait_).count();
    stats_.bytes_read += 3000;
    stats_.files_read += kBatch;
    warnings_.push_back("batch " + std::to_string(++batches_));
    return batch_;
  }
  DataStats stats() const override { return stats_; }
  std::vector<std::string> TakeWarnings() override {
    return std::exchange(warnings_, {});
  }

 private:
  std::chrono::milliseconds wait_;
  Batch batch_;
  DataStats stats_;
  int batches_ = 0;
  std::vector<std::string> warnings_;
};

class TrainingLoop : public ::testing::Test {
 protected:
  TrainingLoop() {
    train_ = &Add(models::Phase::kTrain, codegen::ProgramKind::kTrain);
    eval_ = &Add(models::Phase::kEval, codegen::ProgramKind::kEval);
    session_.state().Initialize(0);
    observer_.interval = [this](const IntervalReport& r) {
      intervals_.push_back(r);
    };
  }

  TrainReport Run(BatchSource& source) {
    return Train(session_, *train_, source, options_, observer_, evaluate_);
  }

  Session session_{LoadBackend("cpu"), {}};
  Program* train_ = nullptr;
  Program* eval_ = nullptr;
  TrainOptions options_{.iterations = 10, .print_every = 5, .lr = {}};
  TrainObserver observer_;
  std::function<std::optional<EvalReport>()> evaluate_;
  std::vector<IntervalReport> intervals_;

 private:
  Program& Add(models::Phase phase, codegen::ProgramKind kind) {
    const models::ModelOptions model{
        .batch = kBatch, .image_size = kSide, .num_classes = 2};
    return session_.Compile(
        models::BuildModel("resnet20-cifar", phase, model).graph, kind, {});
  }
};

TEST_F(TrainingLoop, ASlowSourceMakesTheRunInputBound) {
  options_.epochs = 2;
  SlowSource slow(std::chrono::milliseconds(50));
  const TrainReport report = Run(slow);
  ASSERT_EQ(intervals_.size(), 2);
  for (const IntervalReport& interval : intervals_) {
    EXPECT_GT(interval.data_wait_share, kInputBoundShare);
    EXPECT_GE(interval.seconds, 5 * 0.05);
    EXPECT_EQ(interval.data.files_read, 5 * kBatch);
    const ReadRate rate = ReadRateOf(interval.data, interval.seconds);
    EXPECT_DOUBLE_EQ(rate.files, 5 * kBatch / interval.seconds);
    EXPECT_DOUBLE_EQ(rate.megabytes, 5 * 0.003 / interval.seconds);
  }
  EXPECT_GT(report.data.wait_seconds / report.seconds, kInputBoundShare);
}

TEST_F(TrainingLoop, ASourceThatNeverWaitsDoesNot) {
  options_.epochs = 2;
  SlowSource fast(std::chrono::milliseconds(0));
  Run(fast);
  ASSERT_EQ(intervals_.size(), 2);
  EXPECT_LE(
      std::min(intervals_[0].data_wait_share, intervals_[1].data_wait_share),
      kInputBoundShare);
}

TEST_F(TrainingLoop, WhatWasReadBeforeIsNotCounted) {
  SlowSource source(std::chrono::milliseconds(0));
  source.Next();
  options_.iterations = 3;
  EXPECT_EQ(Run(source).data.files_read, 3 * kBatch);
}

TEST_F(TrainingLoop, StopsBetweenSteps) {
  SlowSource source(std::chrono::milliseconds(0));
  int asked = 0;
  observer_.stop = [&] { return ++asked > 2; };
  const TrainReport report = Run(source);
  EXPECT_TRUE(report.interrupted);
  EXPECT_EQ(report.steps, 2);
  observer_.stop = [] { return true; };
  EXPECT_EQ(Run(source).steps, 0);
}

TEST_F(TrainingLoop, EvaluatesAfterEpochsAndAtTheEnd) {
  options_.epochs = 3;
  options_.iterations = 12;
  SlowSource source(std::chrono::milliseconds(0));
  SlowSource val(std::chrono::milliseconds(0));
  std::vector<std::pair<int64_t, int64_t>> evaluated;
  evaluate_ = [&] { return Evaluate(session_, *eval_, val); };
  observer_.evaluated = [&](int64_t epoch, const EvalReport& r) {
    evaluated.emplace_back(epoch, r.images);
  };
  Run(source);
  EXPECT_THAT(evaluated, ElementsAre(std::pair(1, 10), std::pair(2, 10),
                                     std::pair(2, 10)));
}

TEST_F(TrainingLoop, AnEvaluationThatIsStoppedReportsNothing) {
  SlowSource source(std::chrono::milliseconds(0));
  SlowSource val(std::chrono::milliseconds(0));
  int batches = 0;
  evaluate_ = [&] {
    return Evaluate(session_, *eval_, val,
                    {.stop = [&] { return ++batches > 2; }});
  };
  observer_.evaluated = [](int64_t, const EvalReport&) { FAIL(); };
  options_.iterations = 5;
  Run(source);
  EXPECT_EQ(batches, 3);
}

TEST_F(TrainingLoop, SavesAfterTheEvaluationOfAStepAndAtTheEnd) {
  options_.epochs = 3;
  options_.iterations = 12;
  SlowSource source(std::chrono::milliseconds(0));
  SlowSource val(std::chrono::milliseconds(0));
  evaluate_ = [&] { return Evaluate(session_, *eval_, val); };
  std::vector<std::pair<int64_t, bool>> saved;
  observer_.save = [&](const TrainPosition& position) {
    saved.emplace_back(position.step, position.evaluation_due);
  };
  Run(source);
  EXPECT_THAT(saved, ElementsAre(std::pair(5, false), std::pair(10, false),
                                 std::pair(12, false)));
  saved.clear();
  options_.save_every = 7;
  Run(source);
  EXPECT_THAT(saved, ElementsAre(std::pair(7, false), std::pair(12, false)));
}

TEST_F(TrainingLoop, AnEvaluationThatWasDueIsDoneWhenTheRunGoesOn) {
  SlowSource source(std::chrono::milliseconds(0));
  SlowSource val(std::chrono::milliseconds(0));
  bool stop = false;
  evaluate_ = [&] {
    stop = true;  // a signal arrives
    return Evaluate(session_, *eval_, val, {.stop = [&] { return stop; }});
  };
  observer_.stop = [&] { return stop; };
  TrainPosition saved;
  observer_.save = [&](const TrainPosition& position) { saved = position; };
  options_.epochs = 2;
  EXPECT_TRUE(Run(source).interrupted);
  EXPECT_EQ(saved.step, 5);
  EXPECT_TRUE(saved.evaluation_due);
  stop = false;
  std::vector<int64_t> epochs;
  evaluate_ = [&] { return Evaluate(session_, *eval_, val); };
  observer_.evaluated = [&](int64_t epoch, const EvalReport&) {
    epochs.push_back(epoch);
  };
  options_.start = saved;
  EXPECT_EQ(Run(source).steps, 5);
  EXPECT_THAT(epochs, ElementsAre(1, 2));
}

TEST_F(TrainingLoop, StopsOnceAnEvaluationIsGoodEnough) {
  SlowSource source(std::chrono::milliseconds(0));
  options_.epochs = 4;
  options_.iterations = -1;
  options_.stop_at_top1 = 0.5;
  double top1 = 0.3;
  evaluate_ = [&] {
    EvalReport report;
    report.top1 = top1 += 0.1;
    return report;
  };
  const TrainReport report = Run(source);
  EXPECT_TRUE(report.reached_top1);
  EXPECT_EQ(report.steps, 10);
  EXPECT_DOUBLE_EQ(report.end.best_top1, 0.5);
}

TEST_F(TrainingLoop, ARunCanBeShorterThanItsSchedule) {
  SlowSource source(std::chrono::milliseconds(0));
  options_.epochs = 2;
  options_.run_steps = 3;
  options_.start.step = 4;
  std::vector<int64_t> steps;
  observer_.step = [&](const StepReport& r) { steps.push_back(r.step); };
  EXPECT_EQ(Run(source).end.step, 7);
  EXPECT_THAT(steps, ElementsAre(5, 6, 7));
}

TEST_F(TrainingLoop, PassesOnWhatTheSourceHasToSay) {
  SlowSource source(std::chrono::milliseconds(0));
  std::vector<std::string> warnings;
  observer_.warning = [&](const std::string& text) {
    warnings.push_back(text);
  };
  options_.iterations = 2;
  Run(source);
  EXPECT_THAT(warnings, ElementsAre("batch 1", "batch 2"));
}

std::unique_ptr<ir::Graph> Model() {
  const models::ModelOptions model{
      .batch = kBatch, .image_size = kSide, .num_classes = 2};
  return models::BuildModel("resnet20-cifar", models::Phase::kTrain, model)
      .graph;
}

TEST(MicroBatchLoop, TheLastUpdateOfAnEpochTakesWhatIsLeft) {
  Session session{LoadBackend("cpu"), {}};
  codegen::CompileOptions compile;
  compile.passes.micro_batches = passes::MicroBatches::kFinish;
  Program& train =
      session.Compile(Model(), codegen::ProgramKind::kTrain, compile);
  TrainOptions options{.epochs = 2, .print_every = 1, .lr = {}};
  options.micro_batches = 3;
  options.accumulate =
      &session.Compile(Model(), codegen::ProgramKind::kAccumulate, compile);
  session.state().Initialize(0);
  SlowSource source(std::chrono::milliseconds(0));
  EXPECT_EQ(UpdatesPerEpoch(source.batches_per_epoch(), 3),
            2);  // one of 3 and one of 2 batches
  std::vector<int64_t> epochs;
  int64_t files = 0;
  TrainObserver observer;
  observer.interval = [&](const IntervalReport& r) {
    epochs.push_back(r.epoch);
    files += r.data.files_read;
    EXPECT_EQ(session.state().Read(ir::kBatches)[0], 0);
  };
  const TrainReport report =
      Train(session, train, source, options, observer, {});
  EXPECT_EQ(report.steps, 4);
  EXPECT_THAT(epochs, ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(files, 10 * kBatch);
}

class OverflowLoop : public ::testing::Test {
 protected:
  OverflowLoop() {
    codegen::CompileOptions compile;
    compile.passes.loss_scale = {.initial = 8, .dynamic = true, .floor = 1};
    train_ = &session_.Compile(Model(), codegen::ProgramKind::kTrain, compile);
    session_.state().Initialize(0);
  }

  // Makes every step overflow.
  void Spoil() {
    std::vector<float> weight = session_.state().Read("fc.weight");
    weight[0] = std::numeric_limits<float>::infinity();
    session_.state().Write("fc.weight", weight);
  }

  Session session_{LoadBackend("cpu"), {}};
  Program* train_ = nullptr;
  SlowSource source_{std::chrono::milliseconds(0)};
  TrainOptions options_{.iterations = 5, .print_every = 2, .lr = {}};
  TrainObserver observer_;
};

TEST_F(OverflowLoop, ReportsTheScaleAndWhatWasSkipped) {
  std::vector<std::pair<double, int64_t>> readings;
  observer_.interval = [&](const IntervalReport& r) {
    ASSERT_TRUE(r.overflow.has_value());
    readings.emplace_back(r.overflow->scale, r.overflow->skipped);
    if (readings.size() == 1) Spoil();
  };
  const TrainReport report =
      Train(session_, *train_, source_, options_, observer_, {});
  EXPECT_THAT(readings, ElementsAre(std::pair(8.0, 0), std::pair(2.0, 2),
                                    std::pair(1.0, 1)));
  ASSERT_TRUE(report.overflow.has_value());
  EXPECT_EQ(report.overflow->skipped, 3);
  EXPECT_EQ(report.overflow->scale, 1);
}

TEST_F(OverflowLoop, StopsAfterTooManyInARowAndNamesTheFirstBadValue) {
  Spoil();
  options_.overflow_limit = 4;
  observer_.diagnosis = inspect::FindNonFinite;
  try {
    Train(session_, *train_, source_, options_, observer_, {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDiverged);
    EXPECT_STREQ(error.what(),
                 "training diverged: the last 4 updates were skipped because "
                 "of gradients that are not finite, at loss scale 1 in the "
                 "end; the first such value: input fc.weight: 1 of 128 "
                 "elements of fc.weight are not finite");
  }
}

}  // namespace
}  // namespace fusor::runtime
