// Tests ScaleGradients, SkipOverflow and the seed that Autodiff starts from.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ir/interpreter/interpreter.h"
#include "ir/state_names.h"
#include "passes/passes.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/numeric.h"
#include "tests/testing/run_pass.h"

namespace fusor::passes {
namespace {

using ir::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr char kScaledGradients[] = R"(graph g {
  %a = weight : f32[4]
  %b = bias : f32[2]
  %x = data : f32[4]
  %y = data : f32[2]
  %da = all_reduce(%x) : f32[4] @"one"
  %db = all_reduce(%y) : f32[2] @"two"
  return %da as "grad/a", %db as "grad/b"
})";

TEST(LossScale, OneOnOneRankChangesNothing) {
  PassOptions options;
  const auto graph = test::ParseOrDie(kScaledGradients);
  EXPECT_FALSE(test::RunPass(ScaleGradients, *graph, options));
  EXPECT_FALSE(test::RunPass(SkipOverflow, *graph, options));
  test::ExpectSameGraph(kScaledGradients, *graph);
}

TEST(LossScale, StaticScaleIsDividedByAndNothingIsChecked) {
  PassOptions options;
  options.loss_scale.initial = 128;
  const auto graph = test::ParseOrDie(kScaledGradients);
  EXPECT_TRUE(test::RunPass(ScaleGradients, *graph, options));
  constexpr char kScaled[] = R"(graph g {
    %a = weight : f32[4]
    %b = bias : f32[2]
    %x = data : f32[4]
    %y = data : f32[2]
    %loss_scale = optimizer_state {init="constant", value=128.0} : f32[]
    %da = all_reduce(%x) : f32[4] @"one"
    %db = all_reduce(%y) : f32[2] @"two"
    %1 = constant() {dtype="f32", shape=[], value=[1.0]} : f32[] @"loss_scale"
    %f = div(%1, %loss_scale) : f32[] @"loss_scale"
    %fa = broadcast(%f) {dims=[], shape=[4]} : f32[4] @"one"
    %ga = mul(%da, %fa) : f32[4] @"one"
    %fb = broadcast(%f) {dims=[], shape=[2]} : f32[2] @"two"
    %gb = mul(%db, %fb) : f32[2] @"two"
    return %ga as "grad/a", %gb as "grad/b"
  })";
  test::ExpectSameGraph(kScaled, *graph);
  EXPECT_FALSE(test::RunPass(SkipOverflow, *graph, options));
  test::ExpectSameGraph(kScaled, *graph);
}

TEST(LossScale, DynamicScaleChecksWhatTheRanksAddedUp) {
  PassOptions options;
  options.loss_scale = {.initial = 8, .dynamic = true};
  options.world_size = 4;
  const auto graph = test::ParseOrDie(kScaledGradients);
  EXPECT_TRUE(test::RunPass(ScaleGradients, *graph, options));
  test::ExpectSameGraph(R"(graph g {
    %a = weight : f32[4]
    %b = bias : f32[2]
    %x = data : f32[4]
    %y = data : f32[2]
    %loss_scale = optimizer_state {init="constant", value=8.0} : f32[]
    %da = all_reduce(%x) : f32[4] @"one"
    %db = all_reduce(%y) : f32[2] @"two"
    %finite = all_finite(%da, %db) {groups=[]} : bool[] @"loss_scale"
    %4 = constant() {dtype="f32", shape=[], value=[4.0]} : f32[] @"loss_scale"
    %d = mul(%loss_scale, %4) : f32[] @"loss_scale"
    %1 = constant() {dtype="f32", shape=[], value=[1.0]} : f32[] @"loss_scale"
    %f = div(%1, %d) : f32[] @"loss_scale"
    %fa = broadcast(%f) {dims=[], shape=[4]} : f32[4] @"one"
    %ga = mul(%da, %fa) : f32[4] @"one"
    %fb = broadcast(%f) {dims=[], shape=[2]} : f32[2] @"two"
    %gb = mul(%db, %fb) : f32[2] @"two"
    return %ga as "grad/a", %gb as "grad/b", %finite as "gradients_finite"
  })",
                        *graph);
}

TEST(LossScale, MultipliesTheGradientOfTheLossAndNoOther) {
  PassOptions options;
  options.loss_scale.initial = 32;
  const auto graph = test::ParseOrDie(R"(graph g {
    %p = weight : f32[2]
    %loss = reduce(%p) {dims=[0], kind="sum"} : f32[] @"sum"
    return %loss as "loss"
  })");
  EXPECT_TRUE(test::RunPass(Autodiff, *graph, options));
  test::ExpectSameGraph(R"(graph g {
    %p = weight : f32[2]
    %loss_scale = optimizer_state {init="constant", value=32.0} : f32[]
    %loss = reduce(%p) {dims=[0], kind="sum"} : f32[] @"sum"
    %d = broadcast(%loss_scale) {dims=[], shape=[2]} : f32[2] @"sum"
    %dp = all_reduce(%d) : f32[2] @"sum"
    return %loss as "loss", %dp as "grad/p"
  })",
                        *graph);
}

// A parameter, a running statistic and a gradient accumulator.
constexpr char kUpdated[] = R"(graph g {
  %p = weight : f32[2]
  %s = statistic : f32[]
  %m = accumulator : f32[2]
  %g = data : f32[2]
  %finite = all_finite(%g) : bool[]
  %new = sub(%p, %g) : f32[2] @"fc"
  %next = neg(%s) : f32[] @"bn"
  %sum = add(%m, %g) : f32[2]
  return %finite as "gradients_finite", %new as "p" -> %p,
         %next as "s" -> %s, %sum as "m" -> %m
})";

TEST(LossScale, KeepsAllStateButTheScaleAndSumsOfMicroBatches) {
  PassOptions options;
  options.loss_scale = {.initial = 4,
                        .dynamic = true,
                        .growth_interval = 3,
                        .growth_factor = 2,
                        .backoff_factor = 0.25,
                        .floor = 0.5,
                        .ceiling = 8};
  const auto graph = test::ParseOrDie(kUpdated);
  EXPECT_TRUE(test::RunPass(SkipOverflow, *graph, options));
  test::ExpectSameGraph(R"(graph g {
    %p = weight : f32[2]
    %s = statistic : f32[]
    %m = accumulator : f32[2]
    %g = data : f32[2]
    %scale = optimizer_state {init="constant", value=4.0} : f32[]
    %good = optimizer_state {init="constant", value=0.0} : i32[]
    %overflows = optimizer_state {init="constant", value=0.0} : i32[]
    %row = optimizer_state {init="constant", value=0.0} : i32[]
    %finite = all_finite(%g) {groups=[]} : bool[]
    %new = sub(%p, %g) : f32[2] @"fc"
    %next = neg(%s) : f32[] @"bn"
    %sum = add(%m, %g) : f32[2]
    %f = broadcast(%finite) {dims=[], shape=[2]} : bool[2] @"fc"
    %new_p = select(%f, %new, %p) : f32[2] @"fc"
    %new_s = select(%finite, %next, %s) : f32[] @"bn"
    %0 = constant() {dtype="i32", shape=[], value=[0.0]} : i32[] @"loss_scale"
    %1 = constant() {dtype="i32", shape=[], value=[1.0]} : i32[] @"loss_scale"
    %steps = add(%good, %1) : i32[] @"loss_scale"
    %3 = constant() {dtype="i32", shape=[], value=[3.0]} : i32[] @"loss_scale"
    %grows = compare(%steps, %3) {direction="ge"} : bool[] @"loss_scale"
    %2 = constant() {dtype="f32", shape=[], value=[2.0]} : f32[] @"loss_scale"
    %double = mul(%scale, %2) : f32[] @"loss_scale"
    %8 = constant() {dtype="f32", shape=[], value=[8.0]} : f32[] @"loss_scale"
    %grown = minimum(%double, %8) : f32[] @"loss_scale"
    %q = constant() {dtype="f32", shape=[], value=[0.25]} : f32[] @"loss_scale"
    %quarter = mul(%scale, %q) : f32[] @"loss_scale"
    %h = constant() {dtype="f32", shape=[], value=[0.5]} : f32[] @"loss_scale"
    %shrunk = maximum(%quarter, %h) : f32[] @"loss_scale"
    %kept = select(%grows, %grown, %scale) : f32[] @"loss_scale"
    %new_scale = select(%finite, %kept, %shrunk) : f32[] @"loss_scale"
    %reset = select(%grows, %0, %steps) : i32[] @"loss_scale"
    %new_good = select(%finite, %reset, %0) : i32[] @"loss_scale"
    %o1 = constant() {dtype="i32", shape=[], value=[1.0]} : i32[] @"loss_scale"
    %more = add(%overflows, %o1) : i32[] @"loss_scale"
    %new_o = select(%finite, %overflows, %more) : i32[] @"loss_scale"
    %r1 = constant() {dtype="i32", shape=[], value=[1.0]} : i32[] @"loss_scale"
    %longer = add(%row, %r1) : i32[] @"loss_scale"
    %new_row = select(%finite, %0, %longer) : i32[] @"loss_scale"
    return %finite as "gradients_finite", %new_p as "p" -> %p,
           %new_s as "s" -> %s, %sum as "m" -> %m,
           %new_scale as "loss_scale" -> %scale,
           %new_good as "loss_scale/good_steps" -> %good,
           %new_o as "loss_scale/overflows" -> %overflows,
           %new_row as "loss_scale/overflows_in_row" -> %row
  })",
                        *graph);
}

// Runs steps of kUpdated.
class ScaledSteps {
 public:
  explicit ScaledSteps(const LossScaleOptions& options)
      : graph_(test::ParseOrDie(kUpdated)) {
    PassOptions all;
    all.loss_scale = options;
    test::RunPass(SkipOverflow, *graph_, all);
    for (const ir::Input& input : graph_->inputs()) {
      const double start =
          input.attrs.Has("value") ? input.attrs.Float("value") : 1;
      state_.push_back(
          {input.value->type(),
           std::vector<double>(input.value->type().num_elements(), start)});
    }
  }

  // Runs one step with this gradient. Returns the new scale.
  double Step(double gradient) {
    state_[graph_->FindInput("g")->index()].data = {1, gradient};
    const auto results = ir::Interpret(*graph_, state_, ir::EvalMode::kTyped);
    for (size_t i = 0; i < results.size(); ++i) {
      const int alias = graph_->outputs()[i].alias;
      if (alias >= 0) state_[alias] = results[i];
    }
    return Get(ir::kLossScale);
  }

  double Get(const char* name) const {
    return state_[graph_->FindInput(name)->index()].data[0];
  }

 private:
  std::unique_ptr<ir::Graph> graph_;
  std::vector<Tensor> state_;
};

TEST(LossScale, GrowsAfterGoodStepsInARowUpToTheCeiling) {
  ScaledSteps steps(
      {.initial = 4, .dynamic = true, .growth_interval = 3, .ceiling = 12});
  EXPECT_EQ(steps.Step(0), 4);
  EXPECT_EQ(steps.Step(0), 4);
  EXPECT_EQ(steps.Get(ir::kGoodSteps), 2);
  EXPECT_EQ(steps.Step(0), 8);
  EXPECT_EQ(steps.Get(ir::kGoodSteps), 0);
  for (int i = 0; i < 3; ++i) steps.Step(0);
  EXPECT_EQ(steps.Get(ir::kLossScale), 12);
  for (int i = 0; i < 3; ++i) steps.Step(0);
  EXPECT_EQ(steps.Get(ir::kLossScale), 12);
  EXPECT_EQ(steps.Get(ir::kOverflows), 0);
}

TEST(LossScale, ShrinksAtOnceDownToTheFloorAndCounts) {
  ScaledSteps steps(
      {.initial = 8, .dynamic = true, .growth_interval = 3, .floor = 2});
  steps.Step(0);
  steps.Step(0);
  EXPECT_EQ(steps.Get("p"), -1);
  EXPECT_EQ(steps.Get("s"), 1);
  EXPECT_EQ(steps.Step(kInfinity), 4);
  EXPECT_EQ(steps.Get("p"), -1);
  EXPECT_EQ(steps.Get("s"), 1);
  EXPECT_EQ(steps.Get(ir::kGoodSteps), 0);
  EXPECT_EQ(steps.Step(std::nan("")), 2);
  EXPECT_EQ(steps.Step(-kInfinity), 2);
  EXPECT_EQ(steps.Get(ir::kOverflowsInRow), 3);
  EXPECT_EQ(steps.Step(0), 2);
  EXPECT_EQ(steps.Get("p"), -2);
  EXPECT_EQ(steps.Get("s"), -1);
  EXPECT_EQ(steps.Get(ir::kOverflowsInRow), 0);
  EXPECT_EQ(steps.Get(ir::kOverflows), 3);
}

TEST(LossScale, ClipsTheNormOfAllGradients) {
  PassOptions options;
  options.optimizer.clip_norm = 2.5;
  const auto graph = test::ParseOrDie(kScaledGradients);
  EXPECT_TRUE(test::RunPass(ScaleGradients, *graph, options));
  const auto outputs = [&](double x) {
    const ir::TensorType a{ir::DType::kF32, {4}, {}};
    const ir::TensorType b{ir::DType::kF32, {2}, {}};
    return ir::Interpret(*graph,
                         std::vector{test::MakeTensor(a, {0, 0, 0, 0}),
                                     test::MakeTensor(b, {0, 0}),
                                     test::MakeTensor(a, {x, 0, 0, 2 * x}),
                                     test::MakeTensor(b, {-2 * x, 0})},
                         ir::EvalMode::kExact);
  };
  const auto clipped = outputs(2);  // the norm is 6
  EXPECT_EQ(graph->outputs()[2].name, ir::kGradientNorm);
  EXPECT_EQ(clipped[2].data[0], 6);
  const double c = 2.5 / (6 + 1e-6);
  EXPECT_TRUE(test::AllClose(
      clipped[0], test::MakeTensor(clipped[0].type, {2 * c, 0, 0, 4 * c}),
      1e-15));
  EXPECT_TRUE(test::AllClose(
      clipped[1], test::MakeTensor(clipped[1].type, {-4 * c, 0}), 1e-15));
  const auto kept = outputs(0.5);  // the norm is 1.5
  EXPECT_EQ(kept[0].data, (std::vector<double>{0.5, 0, 0, 1}));
  EXPECT_EQ(kept[1].data, (std::vector<double>{-1, 0}));
}

TEST(LossScale, ClipsWhatTheLossScaleLeaves) {
  PassOptions options;
  options.optimizer.clip_norm = 3;
  options.loss_scale.initial = 16;
  const auto graph = test::ParseOrDie(R"(graph g {
    %a = weight : f64[2]
    %x = data : f64[2]
    %da = all_reduce(%x) : f64[2]
    return %da as "grad/a"
  })");
  EXPECT_TRUE(test::RunPass(ScaleGradients, *graph, options));
  const ir::TensorType a{ir::DType::kF64, {2}, {}};
  const auto out = ir::Interpret(
      *graph,
      std::vector{test::MakeTensor(a, {0, 0}), test::MakeTensor(a, {48, 64}),
                  test::MakeTensor({ir::DType::kF32, {}, {}}, {16})},
      ir::EvalMode::kExact);
  EXPECT_EQ(out[1].data[0], 5);
  const double c = 3 / (5 + 1e-6);
  EXPECT_NEAR(out[0].data[0], 3 * c, 1e-14);
  EXPECT_NEAR(out[0].data[1], 4 * c, 1e-14);
}

// A kernel can then store the state in place and load it again.
TEST(LossScale, UpdatesReadTheStateThatIsKept) {
  PassOptions options;
  options.loss_scale.dynamic = true;
  const auto graph = test::ParseOrDie(R"(graph g {
    %p = weight : f32[2]
    %m = optimizer_state {init="constant", value=0.0} : f32[2]
    %g = data : f32[2]
    %finite = data : bool[]
    %n = add(%m, %g) : f32[2]
    %q = sub(%p, %n) : f32[2]
    return %n as "m" -> %m, %q as "p" -> %p, %finite as "gradients_finite"
  })");
  EXPECT_TRUE(test::RunPass(SkipOverflow, *graph, options));
  const ir::Value* kept =
      graph->outputs()[static_cast<size_t>(graph->FindOutput("m"))].value;
  const ir::Value* next =
      graph->outputs()[static_cast<size_t>(graph->FindOutput("p"))].value;
  ASSERT_EQ(kept->producer()->op_name(), "select");
  ASSERT_EQ(next->producer()->op_name(), "select");
  EXPECT_EQ(kept->producer()->input(1)->producer()->op_name(), "add");
  EXPECT_EQ(next->producer()->input(1)->producer()->input(1), kept);
}

}  // namespace
}  // namespace fusor::passes
