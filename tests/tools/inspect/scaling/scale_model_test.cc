#include "tools/inspect/scaling/scale_model.h"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "codegen/compiler.h"
#include "ir/support/error.h"
#include "models/model.h"
#include "tests/fakes/fake_compiler.h"

namespace fusor::inspect {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

// Returns a step with two gradients of 1 MB in fp32. One is ready in the middle
// of the backward pass, one at its end.
StepTimeline SmallStep() {
  return {.forward = 3e-3,
          .backward = 9e-3,
          .update = 1e-3,
          .gradients = {{"late", 250'000, 6e-3}, {"early", 250'000, 9e-3}}};
}

// Returns a cluster with 1 GB/s within a node, 0.5 GB/s between nodes, and no
// latency.
ir::Cluster SlowCluster() {
  return {.name = "slow", .node = {{8, 1.0}}, .network_gb_per_s = 0.5};
}

constexpr double kMs = 1e-3;

TEST(AllReduceCost, IsNcclsRing) {
  const ir::Cluster cluster{.name = "c",
                            .node = {{2, 40}, {8, 120}},
                            .network_gb_per_s = 5,
                            .base_us = 8,
                            .node_hop_us = 3,
                            .network_hop_us = 14,
                            .network_latency_factor = 2};
  EXPECT_DOUBLE_EQ(AllReduceCost(cluster, 1, 2).Seconds(40'000'000),
                   1e-3 + (8 + 2 * 3) * 1e-6);
  EXPECT_DOUBLE_EQ(AllReduceCost(cluster, 1, 8).Seconds(120'000'000),
                   1.75e-3 + (8 + 14 * 3) * 1e-6);
  // 2 x 2 ranks: 6 hops, 2 of them over the network.
  EXPECT_DOUBLE_EQ(AllReduceCost(cluster, 2, 2).Seconds(5'000'000),
                   1.5e-3 + 2 * (8 + 4 * 3 + 2 * 14) * 1e-6);
}

TEST(AllReduceCost, TakesATreeWhereThatIsFaster) {
  ir::Cluster cluster = SlowCluster();
  cluster.network_hop_us = 10;
  const double ring = AllReduceCost(cluster, 16, 1).Seconds(0);
  cluster.tree_share = 0.8;
  EXPECT_LT(AllReduceCost(cluster, 16, 1).Seconds(0), ring / 2);
  EXPECT_DOUBLE_EQ(AllReduceCost(cluster, 16, 1).Seconds(1 << 30),
                   ring + 1.875 * (1 << 30) / 0.5e9);
}

TEST(PredictScale, OneRankTakesOneStep) {
  const ScalePrediction p =
      PredictScale(SmallStep(), SlowCluster(), {.batch = 4});
  EXPECT_DOUBLE_EQ(p.step, 10 * kMs);
  EXPECT_DOUBLE_EQ(p.speedup, 1);
  EXPECT_DOUBLE_EQ(p.images_per_second, 400);
  EXPECT_TRUE(p.buckets.empty());
  EXPECT_EQ(p.limit, ScaleLimit::kCompute);
}

// With two ranks, an all-reduce of 1 MB takes 1 ms.
TEST(PredictScale, CountsWhatTheBackwardPassDoesNotOverlap) {
  ScaleOptions options{.nodes = 1, .gpus = 2, .batch = 4};
  options.policy.slack_seconds = 0;
  const ScalePrediction p = PredictScale(SmallStep(), SlowCluster(), options);
  ASSERT_EQ(p.buckets.size(), 2u);
  EXPECT_DOUBLE_EQ(p.buckets[0].start, 6 * kMs);
  EXPECT_DOUBLE_EQ(p.buckets[1].end, 10 * kMs);
  EXPECT_NEAR(p.not_overlapped, 1 * kMs, 1e-12);
  EXPECT_NEAR(p.step, 11 * kMs, 1e-12);
  EXPECT_NEAR(p.speedup, 2 * 10 / 11.0, 1e-9);
  EXPECT_EQ(p.limit, ScaleLimit::kCommunication);

  options.policy = passes::ParseBucketPolicy("p", "one");
  EXPECT_NEAR(PredictScale(SmallStep(), SlowCluster(), options).not_overlapped,
              2 * kMs, 1e-12);
  options.policy.element_bytes = 2;
  EXPECT_NEAR(PredictScale(SmallStep(), SlowCluster(), options).not_overlapped,
              1 * kMs, 1e-12);
}

TEST(PredictScale, TheNetworkLimitsSeveralNodes) {
  const ScalePrediction p = PredictScale(SmallStep(), SlowCluster(),
                                         {.nodes = 2, .gpus = 1, .batch = 4});
  EXPECT_NEAR(p.not_overlapped, 2 * kMs, 1e-12);
}

TEST(PredictScale, IsLimitedByTheInput) {
  const ScalePrediction p =
      PredictScale(SmallStep(), SlowCluster(),
                   {.nodes = 1, .gpus = 2, .batch = 4, .input_rate = 400});
  EXPECT_NEAR(p.step, 20 * kMs, 1e-12);
  EXPECT_NEAR(p.starved, 9 * kMs, 1e-3 * kMs);
  EXPECT_NEAR(p.images_per_second, 400, 1e-9);
  EXPECT_EQ(p.limit, ScaleLimit::kInput);
}

TEST(PredictScale, WaitsForTheSlowestRank) {
  ir::Cluster cluster = SlowCluster();
  cluster.node[0].gb_per_s = 1e6;
  cluster.jitter = 0.1;
  const double two =
      PredictScale(SmallStep(), cluster, {.gpus = 2, .batch = 4}).waiting;
  const double eight =
      PredictScale(SmallStep(), cluster, {.gpus = 8, .batch = 4}).waiting;
  // The expected maximum of 2 normal numbers is 0.564, that of 8 is 1.424.
  EXPECT_NEAR(two, 1e-3 * 0.564, 5e-5);
  EXPECT_NEAR(eight, 1e-3 * 1.424, 5e-5);
}

TEST(PredictScale, ScalesFromAMeasuredNode) {
  ScaleOptions options{.nodes = 1, .gpus = 2, .batch = 4, .node_rate = 500};
  EXPECT_NEAR(PredictScale(SmallStep(), SlowCluster(), options).step, 16 * kMs,
              1e-12);
  // The model predicts 11 ms for one node and 12 + 1 for two.
  options.nodes = 2;
  const double model = PredictScale(SmallStep(), SlowCluster(),
                                    {.nodes = 2, .gpus = 2, .batch = 4})
                           .step;
  EXPECT_NEAR(PredictScale(SmallStep(), SlowCluster(), options).step,
              model * 16 / 11, 1e-9);
}

// A reduce-scatter takes half as long as an all-reduce. The first all-gather is
// needed at once, the second in the middle of the forward pass.
TEST(PredictScale, AShardedOptimizerOverlapsHalfWithTheNextForwardPass) {
  ScaleOptions options{.gpus = 2, .batch = 4, .sharded = true};
  options.policy.slack_seconds = 0;
  const ScalePrediction p = PredictScale(SmallStep(), SlowCluster(), options);
  ASSERT_EQ(p.gathered.size(), 2u);
  EXPECT_NEAR(p.buckets[1].end, 9.5 * kMs, 1e-12);
  EXPECT_NEAR(p.gathered[1], 0.5 * kMs, 1e-12);
  EXPECT_NEAR(p.gathered[0], 1 * kMs, 1e-12);
  EXPECT_NEAR(p.not_overlapped, 1 * kMs, 1e-12);
  EXPECT_NEAR(p.step, 10.5 * kMs, 1e-12);
}

TEST(Alternatives, ComeAfterWhatWasChosen) {
  const auto all = Alternatives(SmallStep(), SlowCluster(),
                                {.nodes = 2, .gpus = 2, .batch = 4});
  std::vector<std::string> names;
  for (const ScaleAlternative& a : all) names.push_back(a.name);
  EXPECT_THAT(names,
              ::testing::ElementsAre(
                  "chosen", "buckets cap:25", "buckets apex", "buckets horovod",
                  "buckets one", "16-bit communication", "sharded optimizer"));
  for (const ScaleAlternative& a : all) {
    if (a.name.starts_with("buckets")) {
      EXPECT_GE(a.prediction.not_overlapped,
                all[0].prediction.not_overlapped - 3e-4);
    }
  }
}

TEST(ScaleReport, AgreesInTextJsonAndPicture) {
  ScaleReport report{.subject = "a<b, batch 4",
                     .source = "estimated",
                     .cluster = SlowCluster(),
                     .timeline = SmallStep()};
  report.alternatives = Alternatives(report.timeline, report.cluster,
                                     {.gpus = 2, .batch = 4, .sharded = true});
  const ScalePrediction& p = report.alternatives[0].prediction;
  const std::string text = ScaleText(report);
  EXPECT_THAT(text, HasSubstr("a<b, batch 4 per rank, on 1 x 2 ranks of slow"));
  EXPECT_THAT(text, HasSubstr("limit     communication"));
  EXPECT_THAT(text, HasSubstr("gathered, ms"));
  EXPECT_THAT(text, HasSubstr("no sharded optimizer"));
  const json out = ScaleJson(report);
  EXPECT_EQ(out["step_ms"], p.step * 1e3);
  EXPECT_EQ(out["buckets"].size(), p.buckets.size());
  EXPECT_EQ(out["alternatives"].size(), report.alternatives.size() - 1);
  EXPECT_EQ(out["one_rank"]["gradient_elements"], 500'000);
  const std::string svg = ScaleSvg(report);
  EXPECT_THAT(svg, AllOf(HasSubstr("a&lt;b"), HasSubstr("not overlapped: "),
                         HasSubstr("bucket 0: "), Not(HasSubstr("nan"))));
}

TEST(StepTimeline, HoldsEveryGradientOfAModel) {
  const test::FakeCompiler compiler;
  // In resnet20-cifar, the shifts of two added normalisations have the same
  // gradient, of which the update reads a copy.
  for (const char* arch : {"resnet20-cifar", "vgg16-bn"}) {
    for (const ir::DType dtype : {ir::DType::kF32, ir::DType::kBF16}) {
      models::Model model =
          models::BuildModel(arch, models::Phase::kTrain, {.batch = 2});
      const int64_t parameters = model.graph->inputs().empty() ? 0 : [&] {
        int64_t sum = 0;
        for (const ir::Input& input : model.graph->inputs()) {
          if (IsParameter(input.role)) {
            sum += input.value->type().num_elements();
          }
        }
        return sum;
      }();
      codegen::CompileOptions options;
      options.passes.precision.dtype = dtype;
      options.plan_only = true;
      const codegen::CompiledProgram program =
          codegen::Compile(std::move(model.graph), codegen::ProgramKind::kTrain,
                           compiler, options);
      const PlanReport report =
          ReportPlan(program.plan, *program.graph, compiler);
      const StepTimeline timeline =
          TimelineOf(program.plan, *program.graph, report);
      EXPECT_EQ(timeline.elements(), parameters) << arch;
      EXPECT_NEAR(timeline.step() * 1e6, report.total.us(),
                  1e-6 * report.total.us());
      EXPECT_GT(timeline.forward, 0);
      EXPECT_GT(timeline.gradients.front().ready, 0);
      EXPECT_LE(timeline.gradients.back().ready, timeline.backward);
      const StepTimeline twice = Stretched(timeline, 2 * timeline.step());
      EXPECT_DOUBLE_EQ(twice.step(), 2 * timeline.step());
      EXPECT_DOUBLE_EQ(twice.gradients.back().ready,
                       2 * timeline.gradients.back().ready);
    }
  }
}

TEST(StepTimeline, RejectsAPlanWithoutUpdate) {
  const test::FakeCompiler compiler;
  codegen::CompileOptions options;
  options.plan_only = true;
  const codegen::CompiledProgram program = codegen::Compile(
      models::BuildModel("resnet20-cifar", models::Phase::kEval, {.batch = 2})
          .graph,
      codegen::ProgramKind::kEval, compiler, options);
  EXPECT_THAT(
      [&] {
        TimelineOf(program.plan, *program.graph,
                   ReportPlan(program.plan, *program.graph, compiler));
      },
      ThrowsMessage<Error>(HasSubstr("0 elements of gradients, expected")));
}

}  // namespace
}  // namespace fusor::inspect
