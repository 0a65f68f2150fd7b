// Loss scaling, compiled for the CPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ir/builder.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "models/model.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/state_store.h"
#include "runtime/train/overflow_monitor.h"
#include "tests/testing/numeric.h"
#include "tests/testing/small_models.h"
#include "tests/testing/step_parity.h"
#include "tools/inspect/observers/check_numerics.h"

namespace fusor::test {
namespace {

using codegen::ProgramKind;
using ir::DType;
using ir::Tensor;
using runtime::LoadBackend;
using runtime::Session;
using ::testing::HasSubstr;

constexpr int64_t kImages = 4;

Tensor Rate(double lr) { return MakeTensor({DType::kF32, {}, {}}, {lr}); }

void FeedResidual(StepParity& steps, uint64_t seed) {
  steps.Feed("images",
             RandomTensor({DType::kF32, {kImages, 3, 8, 8}, {}}, seed));
  steps.Feed("labels",
             RandomTensor({DType::kI32, {kImages}, {}}, seed + 1, 0, 4));
  steps.Feed("lr", Rate(0.1));
}

passes::PassOptions Dynamic(double initial) {
  passes::PassOptions options;
  options.loss_scale = {
      .initial = initial, .dynamic = true, .growth_interval = 2};
  return options;
}

TEST(LossScale, CompiledStepsAreTheInterpreters) {
  for (const bool fusion : {true, false}) {
    SCOPED_TRACE(fusion ? "fused" : "not fused");
    passes::PassOptions options = Dynamic(1024);
    options.fusion = fusion;
    StepParity steps(
        LoadBackend("cpu"), [] { return SmallResidual(kImages); }, options);
    const int train = steps.AddProgram(ProgramKind::kTrain);
    steps.InitializeState(1);
    FeedResidual(steps, 2);
    for (int step = 0; step < 3; ++step) {
      steps.Step(train);
      EXPECT_EQ(steps.output(ir::kFinite), 1);
      // In fp32, compiled and interpreted states drift apart after a few steps.
      steps.ExpectAgreement(step == 0 ? 1e-4 : 1e-2);
    }
    EXPECT_EQ(steps.session().state().Read(ir::kLossScale)[0], 2048);
    EXPECT_EQ(steps.session().state().Read(ir::kGoodSteps)[0], 1);
  }
}

// Scaling by a power of two changes no bit of a gradient without underflow or
// overflow.
TEST(LossScale, AStaticScaleChangesNothingInF32) {
  std::map<std::string, std::vector<float>> plain;
  for (const double scale : {1.0, 256.0}) {
    passes::PassOptions options;
    options.eager_rounding = true;
    options.loss_scale.initial = scale;
    StepParity steps(
        LoadBackend("cpu"), [] { return SmallResidual(kImages); }, options);
    const int train = steps.AddProgram(ProgramKind::kTrain);
    steps.InitializeState(1);
    FeedResidual(steps, 2);
    steps.Step(train);
    auto state = AllState(steps.session());
    state.erase(ir::kLossScale);
    if (scale == 1) plain = state;
    EXPECT_EQ(state, plain);
  }
}

// Returns a graph with two layers whose gradients underflow in fp16.
std::unique_ptr<ir::Graph> TinyGradients() {
  auto graph = std::make_unique<ir::Graph>("tiny");
  ir::Builder b(*graph);
  const auto weight = [&](int64_t rows, int64_t columns, const char* name) {
    return graph->AddInput({DType::kF32, {rows, columns}, {}},
                           ir::InputRole::kWeight, name,
                           {{"init", std::string("normal")}, {"std", 0.5}});
  };
  ir::Value* x = graph->AddInput({DType::kF32, {kImages, 16}, {}},
                                 ir::InputRole::kData, "x");
  b.set_location("fc1");
  ir::Value* hidden = b.Relu(b.Linear(x, weight(16, 16, "w1"), nullptr));
  b.set_location("fc2");
  ir::Value* y = b.Linear(hidden, weight(16, 16, "w2"), nullptr);
  b.set_location("loss");
  graph->AddOutput(b.Times(b.ReduceSum(b.Exp(y), {0, 1}), 0x1p-40), "loss");
  return graph;
}

std::vector<double> GradientOf(const char* weight, DType dtype, double scale) {
  codegen::CompileOptions options;
  options.passes.keep_gradients = true;
  // The CPU computes f16 in f32. Without eager rounding, it would not round.
  options.passes.eager_rounding = true;
  options.passes.precision.dtype = dtype;
  options.passes.loss_scale.initial = scale;
  Session session(LoadBackend("cpu"), {});
  runtime::Program& program =
      session.Compile(TinyGradients(), ProgramKind::kTrain, options);
  session.state().Initialize(1);
  const Tensor x = RandomTensor({DType::kF32, {kImages, 16}, {}}, 5);
  std::vector<float> values(x.data.begin(), x.data.end());
  program.SetInput(program.FindInput("x"), values.data(),
                   values.size() * sizeof(float));
  program.Run();
  return program.Read(program.FindOutput(ir::GradientName(weight))).data;
}

double Norm(const std::vector<double>& x) {
  double sum = 0;
  for (double v : x) sum += v * v;
  return std::sqrt(sum);
}

TEST(LossScale, RecoversGradientsThatUnderflowInF16) {
  const std::vector<double> exact = GradientOf("w1", DType::kF32, 1);
  ASSERT_GT(Norm(exact), 0);
  EXPECT_EQ(Norm(GradientOf("w1", DType::kF16, 1)), 0);
  std::vector<double> scaled = GradientOf("w1", DType::kF16, 0x1p36);
  for (size_t i = 0; i < scaled.size(); ++i) scaled[i] -= exact[i];
  EXPECT_LT(Norm(scaled), 0.01 * Norm(exact));
}

// Checks that the state after an overflow equals the state before.
void ExpectSkipped(const std::map<std::string, std::vector<float>>& before,
                   Session& session) {
  for (const auto& [name, values] : AllState(session)) {
    if (name.rfind(ir::kLossScale, 0) == 0) continue;
    EXPECT_EQ(std::memcmp(values.data(), before.at(name).data(),
                          values.size() * sizeof(float)),
              0)
        << name;
  }
}

TEST(LossScale, AnOverflowInAnyLayerSkipsTheWholeUpdate) {
  StepParity steps(
      LoadBackend("cpu"), [] { return SmallResidual(kImages); }, Dynamic(1024));
  const int train = steps.AddProgram(ProgramKind::kTrain);
  steps.InitializeState(1);
  FeedResidual(steps, 2);
  steps.Step(train);
  Session& session = steps.session();
  int parameters = 0;
  for (const codegen::PlanInput& input : steps.program(train).plan().inputs) {
    if (!IsParameter(input.role)) continue;
    SCOPED_TRACE(input.name);
    const std::vector<float> good = session.state().Read(input.name);
    std::vector<float> bad = good;
    bad[bad.size() / 2] = std::numeric_limits<float>::infinity();
    session.state().Write(input.name, bad);
    const auto before = AllState(session);
    steps.program(train).Run();
    EXPECT_EQ(session.state().Read(ir::kOverflows)[0], ++parameters);
    EXPECT_EQ(session.state().Read(ir::kOverflowsInRow)[0], 1);
    EXPECT_EQ(session.state().Read(ir::kLossScale)[0],
              before.at(ir::kLossScale)[0] / 2);
    EXPECT_EQ(session.state().Read(ir::kGoodSteps)[0], 0);
    ExpectSkipped(before, session);
    session.state().Write(input.name, good);
    steps.program(train).Run();
    EXPECT_EQ(session.state().Read(ir::kOverflowsInRow)[0], 0);
    EXPECT_NE(session.state().Read(input.name), good);
    session.state().Write(ir::kLossScale, std::vector<float>{1024});
  }
  EXPECT_EQ(parameters, 20);
}

// Returns the error message of overflows that end the run.
std::string StopMessage(StepParity& steps, int program) {
  try {
    runtime::Session& session = steps.session();
    std::vector<double> state;
    for (const char* name :
         {ir::kLossScale, ir::kOverflows, ir::kOverflowsInRow}) {
      state.push_back(session.state().Read(name)[0]);
    }
    runtime::OverflowMonitor(session, steps.program(program), 1,
                             inspect::FindNonFinite)
        .Read(state);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDiverged);
    return error.what();
  }
  return "";
}

TEST(LossScale, TooManyOverflowsNameAValueOfAnyMicroBatch) {
  passes::PassOptions options = Dynamic(1024);
  options.micro_batches = passes::MicroBatches::kFinish;
  StepParity steps(
      LoadBackend("cpu"), [] { return SmallResidual(kImages); }, options);
  const int finish = steps.AddProgram(ProgramKind::kTrain);
  const int add = steps.AddProgram(ProgramKind::kAccumulate);
  steps.InitializeState(1);
  const auto run = [&](int program, bool bad) {
    FeedResidual(steps, 2);
    Tensor images = RandomTensor({DType::kF32, {kImages, 3, 8, 8}, {}}, 2);
    if (bad) images.data[7] = std::numeric_limits<double>::infinity();
    steps.Feed("images", images);
    steps.program(program).Run();
  };
  run(add, false);
  run(finish, false);
  EXPECT_EQ(StopMessage(steps, finish), "");
  run(add, false);
  run(finish, true);
  EXPECT_THAT(StopMessage(steps, finish), HasSubstr("first such value: input"));
  run(add, true);
  run(finish, false);
  EXPECT_THAT(StopMessage(steps, finish),
              HasSubstr("first such value: accumulated/"));
}

// The gradients overflow only because of the scale. Skipped steps reduce it
// until they do not.
TEST(LossScale, ShrinksUntilF16GradientsFit) {
  passes::PassOptions options = Dynamic(0x1p24);
  options.precision.dtype = DType::kF16;
  options.loss_scale.growth_interval = 1000;
  StepParity steps(
      LoadBackend("cpu"), [] { return SmallResidual(kImages); }, options);
  const int train = steps.AddProgram(ProgramKind::kTrain);
  steps.InitializeState(1);
  FeedResidual(steps, 2);
  Session& session = steps.session();
  const auto before = AllState(session);
  steps.program(train).Run();
  ASSERT_EQ(steps.output(ir::kFinite), 0);
  ExpectSkipped(before, session);
  int skipped = 1;
  while (skipped < 24) {
    steps.program(train).Run();
    if (session.state().Read(ir::kOverflowsInRow)[0] == 0) break;
    ++skipped;
  }
  EXPECT_EQ(session.state().Read(ir::kOverflows)[0], skipped);
  EXPECT_EQ(session.state().Read(ir::kLossScale)[0],
            std::ldexp(1.0, 24 - skipped));
  EXPECT_NE(session.state().Read("fc.weight"), before.at("fc.weight"));
}

// One kernel checks 161 gradients, one updates the scale. Updates need no more
// kernels, and 106 running statistics share a few. The same holds with the
// gradients' norm.
TEST(LossScale, AddsFewKernelsToResNet50) {
  const auto kernels = [](bool dynamic, double clip = 0) {
    codegen::CompileOptions options;
    options.plan_only = true;
    options.passes.loss_scale.dynamic = dynamic;
    options.passes.optimizer.clip_norm = clip;
    const auto compiler = LoadBackend("cpu").CreateCompiler("", {});
    models::ModelOptions model;
    model.batch = 2;
    return Compile(
               models::BuildModel("resnet50-v1.5", models::Phase::kTrain, model)
                   .graph,
               ProgramKind::kTrain, *compiler, options)
        .report.kernels;
  };
  EXPECT_LE(kernels(true) - kernels(false), 10);
  // One kernel computes the norm, one the factor.
  EXPECT_LE(kernels(false, 1) - kernels(false), 2);
}

}  // namespace
}  // namespace fusor::test
