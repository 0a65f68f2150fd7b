#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/io/parser.h"
#include "models/model.h"
#include "passes/pipeline.h"
#include "tests/testing/bare_target.h"
#include "tools/inspect/report/graph_view.h"

namespace fusor::inspect {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(StepPhase, AGraphWithoutLossIsAllForward) {
  const auto graph = ir::Parse(R"(graph g {
    %x = data : f32[2]
    %y = neg(%x) : f32[2]
    %z = neg(%y) : f32[2]
    return %z as "z"
  })");
  EXPECT_THAT(PhasesOf(*graph), Each(StepPhase::kForward));
}

TEST(StepPhase, SplitsAStepIntoForwardBackwardAndUpdate) {
  const auto graph = ir::Parse(R"(graph g {
    %x = data : f32[2]
    %rows = data : f32[3, 2]
    %w = weight : f32[2]
    %m = statistic : f32[2]
    %p = mul(%x, %w) : f32[2]
    %loss = reduce(%p) {dims=[0], kind="sum"} : f32[]
    %next_m = add(%m, %x) : f32[2]
    %g = mul(%x, %x) : f32[2]
    %h = reduce(%rows) {dims=[0], kind="sum"} : f32[2]
    %scaled = mul(%g, %h) : f32[2]
    %next_w = sub(%w, %scaled) : f32[2]
    return %loss as "loss", %next_m as "m" -> %m, %g as "grad/w",
        %next_w as "w" -> %w
  })");
  const StepPhase f = StepPhase::kForward;
  const StepPhase b = StepPhase::kBackward;
  const StepPhase u = StepPhase::kUpdate;
  // A reduction over the batch is never part of an update.
  EXPECT_THAT(PhasesOf(*graph), ElementsAre(f, f, f, b, b, u, u));
}

TEST(StepPhase, AnUpdateMayTakeNormsLikeThatOfLars) {
  const auto graph = ir::Parse(R"(graph g {
    %x = data : f32[2]
    %w = weight : f32[2]
    %p = mul(%x, %w) : f32[2]
    %loss = reduce(%p) {dims=[0], kind="sum"} : f32[]
    %g = mul(%x, %x) : f32[2]
    %next, %n = fusion(%w, %g) : f32[2], f32[] graph fusion {
      %w = data : f32[2]
      %g = data : f32[2]
      %norm = reduce(%g) {dims=[0], kind="sum"} : f32[]
      %wide = broadcast(%norm) {dims=[], shape=[2]} : f32[2]
      %d = mul(%g, %wide) : f32[2]
      %n = sub(%w, %d) : f32[2]
      return %n as "n", %norm as "norm"
    }
    return %loss as "loss", %next as "w" -> %w, %n as "norm"
  })");
  const StepPhase f = StepPhase::kForward;
  const StepPhase u = StepPhase::kUpdate;
  // The gradient is cheap, and only the update reads it.
  EXPECT_THAT(PhasesOf(*graph), ElementsAre(f, f, u, u));
}

// Also if the norms are separate kernels.
TEST(StepPhase, NormsOfWholeTensorsBelongToTheUpdate) {
  const auto graph = ir::Parse(R"(graph g {
    %x = data : f32[2]
    %w = weight : f32[2]
    %p = mul(%x, %w) : f32[2]
    %loss = reduce(%p) {dims=[0], kind="sum"} : f32[]
    %g = mul(%x, %x) : f32[2]
    %squares = mul(%g, %g) : f32[2]
    %of_g = reduce(%squares) {dims=[0], kind="sum"} : f32[]
    %of_w = fusion(%w) : f32[] graph fusion {
      %w = data : f32[2]
      %squares = mul(%w, %w) : f32[2]
      %norm = reduce(%squares) {dims=[0], kind="sum"} : f32[]
      return %norm as "norm"
    }
    %trust = div(%of_w, %of_g) : f32[]
    %wide = broadcast(%trust) {dims=[], shape=[2]} : f32[2]
    %d = mul(%g, %wide) : f32[2]
    %next = sub(%w, %d) : f32[2]
    return %loss as "loss", %g as "grad/w", %next as "w" -> %w
  })");
  const StepPhase f = StepPhase::kForward;
  const StepPhase b = StepPhase::kBackward;
  const StepPhase u = StepPhase::kUpdate;
  EXPECT_THAT(PhasesOf(*graph), ElementsAre(f, f, b, u, u, u, u, u, u, u));
}

TEST(StepPhase, EveryParameterOfAModelIsUpdatedAfterItsGradient) {
  auto graph =
      models::BuildModel("resnet20-cifar", models::Phase::kTrain,
                         {.batch = 2, .image_size = 32, .num_classes = 10})
          .graph;
  const test::BareTarget target;
  passes::PassContext context(target, {});
  passes::RunPipeline(*graph, context, passes::Stage::kForward);
  const size_t forward_nodes = graph->nodes().size();
  passes::RunPipeline(*graph, context, passes::Stage::kTraining);
  const std::vector<StepPhase> phases = PhasesOf(*graph);
  EXPECT_EQ(phases.front(), StepPhase::kForward);
  size_t forward = 0;
  for (StepPhase phase : phases)
    forward += phase == StepPhase::kForward ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(forward), static_cast<double>(forward_nodes),
              static_cast<double>(forward_nodes) / 10);
  for (const ir::Output& output : graph->outputs()) {
    if (output.alias < 0) continue;
    const ir::InputRole role = graph->inputs()[output.alias].role;
    if (!IsParameter(role)) continue;
    EXPECT_EQ(phases[output.value->producer()->position()], StepPhase::kUpdate)
        << output.name;
  }
}

}  // namespace
}  // namespace fusor::inspect
