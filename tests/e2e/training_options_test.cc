// Micro-batches, clipping, averages, optimizers and 16-bit gradients, compiled
// for the CPU.

#include <gtest/gtest.h>

#include <limits>

#include "ir/builder.h"
#include "ir/state_names.h"
#include "passes/training/training_state.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/state_store.h"
#include "tests/testing/numeric.h"
#include "tests/testing/small_models.h"
#include "tests/testing/step_parity.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::test {
namespace {

using codegen::ProgramKind;
using ir::DType;
using ir::Tensor;
using runtime::LoadBackend;
using runtime::Session;

constexpr int64_t kBatchSize = 4;

// Returns a graph with a convolution, a pool and two linear layers with biases,
// and without normalisation.
std::unique_ptr<ir::Graph> Plain(int64_t batch) {
  auto graph = std::make_unique<ir::Graph>("plain");
  ir::Builder b(*graph);
  const auto parameter = [&](ir::Shape shape, ir::InputRole role,
                             const char* name) {
    return graph->AddInput({DType::kF32, std::move(shape), {}}, role, name,
                           {{"init", std::string("normal")}, {"std", 0.3}});
  };
  ir::Value* images = graph->AddInput({DType::kF32, {batch, 3, 8, 8}, {}},
                                      ir::InputRole::kData, "images");
  ir::Value* labels = graph->AddInput({DType::kI32, {batch}, {}},
                                      ir::InputRole::kData, "labels");
  b.set_location("conv");
  ir::Value* x = b.Conv2d(
      images, parameter({16, 3, 3, 3}, ir::InputRole::kWeight, "conv.weight"),
      parameter({16}, ir::InputRole::kBias, "conv.bias"),
      {.pad_h = 1, .pad_w = 1});
  x = b.GlobalAvgPool(b.Relu(x));
  b.set_location("fc1");
  x = b.Linear(x, parameter({10, 16}, ir::InputRole::kWeight, "fc1.weight"),
               parameter({10}, ir::InputRole::kBias, "fc1.bias"));
  b.set_location("fc2");
  x = b.Linear(b.Relu(x),
               parameter({4, 10}, ir::InputRole::kWeight, "fc2.weight"),
               parameter({4}, ir::InputRole::kBias, "fc2.bias"));
  b.set_location("loss");
  graph->AddOutput(b.ReduceMean(b.CrossEntropy(x, labels, {}), {0}), "loss");
  return graph;
}

// Returns every optimizer with its defaults, by name.
std::map<std::string, passes::PassOptions> EveryOptimizer() {
  std::map<std::string, passes::PassOptions> all;
  for (const std::string& name : passes::OptimizerNames()) {
    all[name].optimizer.kind = passes::ParseOptimizer(name);
  }
  return all;
}

Tensor Rate() { return MakeTensor({DType::kF32, {}, {}}, {0.1}); }

Tensor Images(int64_t batch) {
  return RandomTensor({DType::kF32, {batch, 3, 8, 8}, {}}, 2);
}

Tensor Labels(int64_t batch) {
  return RandomTensor({DType::kI32, {batch}, {}}, 3, 0, 4);
}

// Returns micro-batch `i` of a batch.
Tensor Part(const Tensor& whole, int64_t batch, int64_t i) {
  Tensor part{whole.type, {}};
  part.type.shape[0] = batch;
  const int64_t size = part.type.num_elements();
  part.data.assign(whole.data.begin() + i * size,
                   whole.data.begin() + (i + 1) * size);
  return part;
}

void FeedPart(StepParity& steps, int64_t parts, int64_t i) {
  steps.Feed("images", Part(Images(parts * kBatchSize), kBatchSize, i));
  steps.Feed("labels", Part(Labels(parts * kBatchSize), kBatchSize, i));
  steps.Feed("lr", Rate());
}

passes::PassOptions Finishing() {
  passes::PassOptions options;
  options.micro_batches = passes::MicroBatches::kFinish;
  return options;
}

TEST(MicroBatches, EqualOneLargeBatch) {
  StepParity large(LoadBackend("cpu"), [] { return Plain(3 * kBatchSize); },
                   {});
  const int once = large.AddProgram(ProgramKind::kTrain);
  large.InitializeState(1);
  large.Feed("images", Images(3 * kBatchSize));
  large.Feed("labels", Labels(3 * kBatchSize));
  large.Feed("lr", Rate());

  StepParity small(
      LoadBackend("cpu"), [] { return Plain(kBatchSize); }, Finishing());
  const int finish = small.AddProgram(ProgramKind::kTrain);
  const int add = small.AddProgram(ProgramKind::kAccumulate);
  small.InitializeState(1);
  for (int update = 0; update < 2; ++update) {
    large.Step(once);
    double loss = 0;
    for (const int i : {0, 1, 2}) {
      FeedPart(small, 3, i);
      const auto before = AllState(small.session());
      small.Step(i == 2 ? finish : add);
      loss += small.output("loss") / 3;
      if (i == 2) continue;
      EXPECT_EQ(AllState(small.session()), before);
    }
    small.ExpectAgreement(1e-4);
    EXPECT_NEAR(loss, large.output("loss"), 1e-5);
    const auto expected = AllState(large.session());
    for (const auto& [name, values] : AllState(small.session())) {
      const auto tensor = [&](const std::vector<float>& v) {
        const auto size = static_cast<int64_t>(v.size());
        return Tensor{{DType::kF32, {size}, {}}, {v.begin(), v.end()}};
      };
      EXPECT_LE(MaxRelativeError(tensor(values), tensor(expected.at(name))),
                1e-4)
          << name;
    }
  }
}

// An incomplete update at the end of an epoch averages fewer micro-batches.
TEST(MicroBatches, FinishingAloneIsAnOrdinaryStep) {
  std::map<std::string, std::vector<float>> plain;
  for (const bool finishing : {false, true}) {
    passes::PassOptions options;
    if (finishing) options = Finishing();
    options.eager_rounding = true;
    StepParity steps(
        LoadBackend("cpu"), [] { return Plain(kBatchSize); }, options);
    const int train = steps.AddProgram(ProgramKind::kTrain);
    steps.InitializeState(1);
    FeedPart(steps, 1, 0);
    steps.Step(train);
    steps.Step(train);
    if (!finishing) plain = AllState(steps.session());
    EXPECT_EQ(AllState(steps.session()), plain);
  }
}

TEST(MicroBatches, AdvanceRunningStatisticsAsPyTorchDoes) {
  for (const double scale : {1.0, 1024.0}) {
    SCOPED_TRACE(scale);
    passes::PassOptions options = Finishing();
    options.loss_scale.initial = scale;
    options.loss_scale.dynamic = scale != 1;
    StepParity steps(
        LoadBackend("cpu"), [] { return SmallResidual(kBatchSize); }, options);
    const int finish = steps.AddProgram(ProgramKind::kTrain);
    const int add = steps.AddProgram(ProgramKind::kAccumulate);
    steps.InitializeState(1);
    Session& session = steps.session();
    for (const int i : {0, 1, 2}) {
      FeedPart(steps, 3, i);
      const auto before = session.state().Read("stem.running_mean");
      steps.Step(i == 2 ? finish : add);
      const bool held = scale != 1 && i != 2;
      EXPECT_EQ(session.state().Read("stem.running_mean") == before, held);
      steps.ExpectAgreement(1e-3);
    }
  }
}

TEST(MicroBatches, AnOverflowInOneSkipsTheUpdateOfAll) {
  passes::PassOptions options = Finishing();
  options.loss_scale = {.initial = 1024, .dynamic = true};
  StepParity steps(
      LoadBackend("cpu"), [] { return SmallResidual(kBatchSize); }, options);
  const int finish = steps.AddProgram(ProgramKind::kTrain);
  const int add = steps.AddProgram(ProgramKind::kAccumulate);
  steps.InitializeState(1);
  Session& session = steps.session();
  for (const int bad : {0, 1, 2}) {
    SCOPED_TRACE(bad);
    const auto before = AllState(session);
    for (const int i : {0, 1, 2}) {
      FeedPart(steps, 3, i);
      if (i == bad) {
        Tensor images = Images(kBatchSize);
        images.data[7] = std::numeric_limits<double>::infinity();
        steps.Feed("images", images);
      }
      steps.program(i == 2 ? finish : add).Run();
    }
    for (const auto& [name, values] : AllState(session)) {
      if (name.rfind(ir::kLossScale, 0) == 0) continue;
      EXPECT_EQ(values, before.at(name)) << name;
    }
    EXPECT_EQ(session.state().Read(ir::kOverflows)[0], bad + 1);
  }
  const auto before = AllState(session);
  for (const int i : {0, 1, 2}) {
    FeedPart(steps, 3, i);
    steps.program(i == 2 ? finish : add).Run();
  }
  EXPECT_NE(session.state().Read("fc.weight"), before.at("fc.weight"));
  EXPECT_NE(session.state().Read("stem.running_mean"),
            before.at("stem.running_mean"));
}

// Micro-batches and skipped updates are not counted.
TEST(MicroBatches, UpdatesAreCountedOnceTheyAreDone) {
  passes::PassOptions options = Finishing();
  options.loss_scale = {.initial = 1024, .dynamic = true};
  options.optimizer.kind = passes::OptimizerKind::kAdam;
  StepParity steps(
      LoadBackend("cpu"), [] { return Plain(kBatchSize); }, options);
  const int finish = steps.AddProgram(ProgramKind::kTrain);
  const int add = steps.AddProgram(ProgramKind::kAccumulate);
  steps.InitializeState(1);
  const auto count = [&] {
    return steps.session().state().Read(ir::kUpdates)[0];
  };
  float updates = 0;
  for (const bool overflow : {false, true, true, false}) {
    const auto moments = steps.session().state().Read("second_moment/fc1.bias");
    FeedPart(steps, 2, 0);
    steps.program(add).Run();
    EXPECT_EQ(count(), updates);
    FeedPart(steps, 2, 1);
    if (overflow) {
      Tensor images = Images(kBatchSize);
      images.data[7] = std::numeric_limits<double>::infinity();
      steps.Feed("images", images);
    }
    steps.program(finish).Run();
    updates += overflow ? 0 : 1;
    EXPECT_EQ(count(), updates);
    EXPECT_EQ(steps.session().state().Read("second_moment/fc1.bias") == moments,
              overflow);
  }
  EXPECT_EQ(steps.session().state().Read(ir::kOverflows)[0], 2);
  steps.InitializeState(1);
  EXPECT_EQ(count(), 0);
}

// Tests each option by itself, then all together.
TEST(TrainingOptions, CompiledStepsAreTheInterpreters) {
  std::map<std::string, passes::PassOptions> all = EveryOptimizer();
  all["clipped"].optimizer.clip_norm = 0.05;
  all["averaged"].optimizer.ema_decay = 0.9;
  all["decoupled"].optimizer = {.weight_decay = 0.1,
                                .decoupled_weight_decay = true};
  all["together"].optimizer = {.kind = passes::OptimizerKind::kLars,
                               .nesterov = true,
                               .clip_norm = 0.05,
                               .ema_decay = 0.9};
  all["together"].loss_scale = {.initial = 256, .dynamic = true};
  all["together, lamb"] = all["together"];
  all["together, lamb"].optimizer.kind = passes::OptimizerKind::kLamb;
  const TemporaryFolder kernels;
  for (auto& [name, options] : all) {
    for (const bool fusion : {true, false}) {
      SCOPED_TRACE(name + (fusion ? "" : ", not fused"));
      options.fusion = fusion;
      StepParity steps(
          LoadBackend("cpu"), [] { return Plain(kBatchSize); }, options,
          kernels.path());
      const int train = steps.AddProgram(ProgramKind::kTrain);
      steps.InitializeState(1);
      FeedPart(steps, 1, 0);
      for (int step = 0; step < 3; ++step) {
        steps.Step(train);
        steps.ExpectAgreement(2e-4);
      }
      if (options.optimizer.clip_norm > 0) {
        EXPECT_GT(steps.output(ir::kGradientNorm), 0.05);
      }
    }
  }
}

// With eager rounding, results are bit-identical with and without fusion, and
// however updates are grouped.
TEST(TrainingOptions, FusionChangesNoBitWithEagerRounding) {
  std::map<std::string, passes::PassOptions> all = EveryOptimizer();
  all["clipped"].optimizer.clip_norm = 0.05;
  all["averaged"].optimizer.ema_decay = 0.9;
  all["scaled"].loss_scale = {.initial = 256, .dynamic = true};
  const TemporaryFolder kernels;  // most are those of every optimizer
  for (auto& [name, options] : all) {
    options.eager_rounding = true;
    options.micro_batches = passes::MicroBatches::kFinish;
    std::map<std::string, std::vector<float>> fused;
    for (const bool fusion : {true, false}) {
      options.fusion = fusion;
      StepParity steps(
          LoadBackend("cpu"), [] { return SmallBottlenecks(kBatchSize); },
          options, kernels.path());
      const int finish = steps.AddProgram(ProgramKind::kTrain);
      const int add = steps.AddProgram(ProgramKind::kAccumulate);
      steps.InitializeState(1);
      const ir::Graph& graph = steps.program(finish).graph();
      steps.Feed("images", RandomTensor(graph.FindInput("images")->type(), 2));
      steps.Feed("labels",
                 RandomTensor(graph.FindInput("labels")->type(), 3, 0, 4));
      steps.Feed("lr", Rate());
      for (const int program : {add, finish, finish}) {
        steps.program(program).Run();
      }
      if (fusion) fused = AllState(steps.session());
      for (const auto& [state, values] : AllState(steps.session())) {
        EXPECT_EQ(values, fused.at(state)) << name << ": " << state;
      }
    }
  }
}

TEST(TrainingOptions, AveragesAreWhatAnEvaluationReads) {
  passes::PassOptions options;
  options.optimizer.ema_decay = 0.5;
  StepParity steps(
      LoadBackend("cpu"), [] { return Plain(kBatchSize); }, options);
  const int train = steps.AddProgram(ProgramKind::kTrain);
  Session& session = steps.session();
  auto averages = Plain(kBatchSize);
  passes::ReadAverages(*averages);
  runtime::Program& evaluation =
      session.Compile(std::move(averages), ProgramKind::kEval, {});
  runtime::Program& plain =
      session.Compile(Plain(kBatchSize), ProgramKind::kEval, {});
  steps.InitializeState(1);
  FeedPart(steps, 1, 0);
  for (int step = 0; step < 3; ++step) steps.Step(train);
  const auto loss = [&](runtime::Program& program) {
    for (const auto& [name, tensor] : {std::pair("images", Images(kBatchSize)),
                                       {"labels", Labels(kBatchSize)}}) {
      std::vector<char> bytes;
      for (double x : tensor.data) {
        const auto f = static_cast<float>(x);
        const auto n = static_cast<int32_t>(x);
        const char* from = tensor.type.dtype == DType::kF32
                               ? reinterpret_cast<const char*>(&f)
                               : reinterpret_cast<const char*>(&n);
        bytes.insert(bytes.end(), from, from + 4);
      }
      program.SetInput(program.FindInput(name), bytes.data(), bytes.size());
    }
    program.Run();
    return program.ReadScalar(program.FindOutput("loss"));
  };
  const double with_parameters = loss(plain);
  const double with_averages = loss(evaluation);
  EXPECT_NE(with_parameters, with_averages);
  for (const codegen::PlanInput& input : steps.program(train).plan().inputs) {
    if (!IsParameter(input.role)) continue;
    session.state().Write(input.name,
                          session.state().Read(ir::AverageName(input.name)));
  }
  EXPECT_EQ(loss(plain), with_averages);
}

TEST(TrainingOptions, GradientsIn16BitAgreeWithTheInterpreter) {
  passes::PassOptions options;
  options.precision = {.dtype = DType::kBF16, .narrow_gradients = true};
  options.loss_scale = {.initial = 1024, .dynamic = true};
  StepParity steps(
      LoadBackend("cpu"), [] { return Plain(kBatchSize); }, options);
  const int train = steps.AddProgram(ProgramKind::kTrain);
  steps.InitializeState(1);
  FeedPart(steps, 1, 0);
  steps.Step(train);
  // The interpreted session does not run mixed precision. It only rounds
  // gradients.
  steps.ExpectAgreement(0.05);
}

}  // namespace
}  // namespace fusor::test
