// The host prepares batches while the device runs steps. The emulated GPU's
// streams run their work when they must, or earlier.

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <vector>

#include "codegen/compiler.h"
#include "ir/state_names.h"
#include "runtime/data/datasets/synthetic.h"
#include "runtime/program.h"
#include "runtime/state_store.h"
#include "runtime/train/step_results.h"
#include "runtime/train/training_loop.h"
#include "tests/fakes/emulated_device.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/small_models.h"

namespace fusor::test {
namespace {

using models::Phase;
using runtime::Batch;
using runtime::TrainReport;

constexpr int kBatch = 2;

// Calls `asked` before each batch.
class WatchedSource : public runtime::SyntheticSource {
 public:
  explicit WatchedSource(std::function<void()> asked)
      : SyntheticSource({.batch_size = kBatch,
                         .image_size = 32,
                         .num_classes = 10,
                         .samples = 16,
                         .distinct_batches = 3}),
        asked_(std::move(asked)) {}
  const Batch& Next() override {
    asked_();
    return SyntheticSource::Next();
  }

 private:
  std::function<void()> asked_;
};

struct Outcome {
  TrainReport report;
  std::vector<int64_t> completed;    // steps completed before each batch
  std::map<int64_t, double> scales;  // by last iteration of an interval
};

class RunningAhead : public ::testing::Test {
 protected:
  Outcome Train(int world_size, uint64_t seed, int64_t save_every = 0,
                int64_t graph_steps = 1) {
    EmulatedBackend backend(
        {.compiler = [] { return CudaPlanner("nvidia-h200"); },
         .seed = seed,
         .world_size = world_size});
    const auto communicator = world_size > 1 ? backend.Connect() : nullptr;
    runtime::Session session(backend, {}, communicator.get());
    codegen::CompileOptions options;
    options.passes.world_size = world_size;
    options.passes.precision.dtype = ir::DType::kF16;
    options.passes.loss_scale.dynamic = true;
    runtime::Program& program =
        session.Compile(NarrowVgg16Bn(Phase::kTrain, kBatch, 32),
                        codegen::ProgramKind::kTrain, options);
    session.state().Initialize(1);
    Outcome run;
    int64_t completed = 0;
    WatchedSource source([&] { run.completed.push_back(completed); });
    runtime::TrainObserver observer;
    observer.step = [&](const runtime::StepReport& r) {
      EXPECT_EQ(r.step, ++completed);
    };
    observer.interval = [&](const runtime::IntervalReport& r) {
      run.scales[r.iteration] = r.overflow->scale;
    };
    observer.save = [&](const runtime::TrainPosition& position) {
      EXPECT_EQ(position.step, completed);
    };
    run.report = runtime::Train(session, program, source,
                                {.epochs = 2,
                                 .iterations = 7,
                                 .print_every = 2,
                                 .save_every = save_every,
                                 .lr = {.base = 1e-3},
                                 .graph_steps = graph_steps},
                                observer, nullptr);
    EXPECT_EQ(session.state().Read(ir::kLossScale)[0], run.scales.at(7));
    return run;
  }
};

TEST_F(RunningAhead, ABatchIsAskedForWhileTheStepBeforeRuns) {
  const Outcome run = Train(1, 1);
  EXPECT_EQ(run.completed, (std::vector<int64_t>{0, 0, 1, 2, 3, 4, 5}));
  ASSERT_EQ(run.report.losses.size(), 7u);
  // Every loss is that of its own step. With a save after each step, there are
  // no groups.
  const Outcome waiting = Train(1, 2, /*save_every=*/1, /*graph_steps=*/2);
  EXPECT_EQ(waiting.completed, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(run.report.losses, waiting.report.losses);
  EXPECT_EQ(run.report.end.loss_hash, waiting.report.end.loss_hash);
  EXPECT_EQ(run.scales, waiting.scales);
  EXPECT_EQ(run.scales.size(), 4u);
  // The emulated GPU captures no graphs, so it enqueues the steps of a group
  // one by one.
  const Outcome grouped = Train(1, 6, /*save_every=*/0, /*graph_steps=*/2);
  EXPECT_EQ(grouped.completed, (std::vector<int64_t>{0, 0, 0, 0, 2, 2, 4}));
  EXPECT_EQ(grouped.report.losses, run.report.losses);
  EXPECT_EQ(grouped.report.end.loss_hash, run.report.end.loss_hash);
  EXPECT_EQ(grouped.scales, run.scales);
}

TEST_F(RunningAhead, LossesOfRanksAreSummedBehindTheStepAfter) {
  const Outcome run = Train(2, 3);
  EXPECT_EQ(run.completed, (std::vector<int64_t>{0, 0, 0, 1, 2, 3, 4}));
  const Outcome grouped = Train(2, 8, /*save_every=*/0, /*graph_steps=*/2);
  EXPECT_EQ(grouped.completed, (std::vector<int64_t>{0, 0, 0, 0, 0, 0, 2}));
  EXPECT_EQ(grouped.report.losses, run.report.losses);
  const Outcome waiting = Train(2, 4, /*save_every=*/1);
  EXPECT_EQ(waiting.completed, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(run.report.losses, waiting.report.losses);
}

TEST_F(RunningAhead, AnEvaluationSumsUpEachOfItsBatches) {
  EmulatedBackend backend(
      {.compiler = [] { return CudaPlanner("nvidia-h200"); }, .seed = 5});
  runtime::Session session(backend, {});
  runtime::Program& program = session.Compile(
      NarrowVgg16Bn(Phase::kEval, kBatch, 32), codegen::ProgramKind::kEval, {});
  session.state().Initialize(1);
  const auto evaluate = [&](const std::function<void(const Batch&)>& done) {
    int64_t batches = 0;
    WatchedSource source([&] { ++batches; });
    const auto report =
        runtime::Evaluate(session, program, source, {.done = done});
    EXPECT_EQ(batches, source.batches_per_epoch());
    return *report;
  };
  const runtime::EvalReport ahead = evaluate({});
  int64_t seen = 0;
  const runtime::EvalReport waiting = evaluate([&](const Batch&) { ++seen; });
  EXPECT_EQ(seen, 8);
  EXPECT_EQ(ahead.images, 16);
  EXPECT_EQ(ahead.loss, waiting.loss);
  EXPECT_EQ(ahead.top1, waiting.top1);
  EXPECT_EQ(ahead.top5, waiting.top5);
  EXPECT_GT(ahead.top5, ahead.top1);
}

}  // namespace
}  // namespace fusor::test
