#include "codegen/plan/plan_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "codegen/plan/verify_plan.h"
#include "codegen/plan/views.h"
#include "ir/builder.h"
#include "ir/support/error.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/plan_runner.h"
#include "tests/testing/random_graph.h"
#include "tests/testing/update_graph.h"

namespace fusor::codegen {
namespace {

using ::testing::HasSubstr;

// Plans a copy of the graph without passes. The library runs every node except
// fusions.
Plan PlanOf(const ir::Graph& graph, const PlanOptions& options = {}) {
  const test::FakeCompiler compiler;
  const auto planned = graph.Clone();
  Plan plan = BuildPlan(*planned, test::LowerAll(*planned, compiler.target()),
                        compiler, options);
  VerifyPlan(plan, *planned);
  return plan;
}

const Buffer& BufferOf(const Plan& plan, std::string_view name) {
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.name == name) return buffer;
  }
  throw std::runtime_error(fmt::format("no buffer {}", name));
}

void ExpectNear(const std::vector<ir::Tensor>& expected,
                const std::vector<ir::Tensor>& actual, double tolerance) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(expected[i].data.size(), actual[i].data.size());
    for (size_t k = 0; k < expected[i].data.size(); ++k) {
      const double e = expected[i].data[k];
      const double a = actual[i].data[k];
      ASSERT_TRUE(e == a || (e != e && a != a) ||
                  std::abs(e - a) <= tolerance * (1 + std::abs(e)))
          << "output " << i << "[" << k << "]: " << e << " and " << a;
    }
  }
}

// The first all_reduce must not overwrite what a step reads before the second
// one.
TEST(BuildPlan, AValueReadBetweenTwoAllReducesIsCopiedForBoth) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %x = data : f32[4]
      %y = exp(%x) : f32[4]
      %a = all_reduce(%y) : f32[4]
      %b = add(%a, %y) : f32[4]
      %c, %d = all_reduce(%y, %b) : f32[4], f32[4]
      return %c, %d
    })");
  const Plan plan = PlanOf(*graph);
  std::set<std::vector<int>> places;
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::kCollective) places.insert(step.args);
  }
  EXPECT_EQ(places.size(), 2U);
}

TEST(BuildPlan, PlannedLibraryCallsComputeTheGraph) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const auto graph =
        test::RandomGraph(seed, {.nodes = 25, .layouts = true, .states = true});
    const auto inputs = test::RandomInputs(*graph, seed);
    const Plan plan = PlanOf(*graph);
    ExpectNear(Interpret(*graph, inputs, ir::EvalMode::kTyped),
               test::RunPlan(plan, inputs), 0);
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
}

void ExpectKernelsCompute(unsigned ops, double tolerance) {
  const test::FakeCompiler compiler;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const auto graph = test::RandomGraph(
        seed, {.nodes = 40, .ops = ops, .layouts = true, .states = true});
    const auto inputs = test::RandomInputs(*graph, seed);
    const test::Planned planned = test::FuseAndPlan(*graph, compiler);
    VerifyPlan(planned.plan, *planned.graph);
    ExpectNear(Interpret(*planned.graph, inputs, ir::EvalMode::kTyped),
               test::RunPlan(planned.plan, inputs), tolerance);
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
}

TEST(BuildPlan, PlannedKernelsComputeTheGraph) {
  ExpectKernelsCompute(test::kAllOps & ~test::kReduce, 0);
}

TEST(BuildPlan, PlannedReductionsComputeTheGraph) {
  ExpectKernelsCompute(test::kElementwise | test::kBroadcast | test::kReduce,
                       1e-4);
}

// --- State ---------------------------------------------------------------

TEST(BuildPlan, UpdatesStateInPlaceOnceEveryReaderHasRun) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %x = data : f32[8]
      %w = weight : f32[8]
      %new = exp(%x) : f32[8]
      %late = mul(%w, %x) : f32[8]
      return %late as "y", %new as "w" -> %w
    })");
  const Plan plan = PlanOf(*graph);
  ASSERT_EQ(plan.steps.size(), 2);
  EXPECT_EQ(plan.steps[0].name, "late");
  EXPECT_EQ(BufferOf(plan, "new").offset, BufferOf(plan, "w").offset);
  EXPECT_EQ(BufferOf(plan, "new").arena, BufferOf(plan, "w").arena);
}

TEST(BuildPlan, CopiesStateWhoseOldValueIsNeededWithTheNew) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %x = data : f32[8]
      %w = weight : f32[8]
      %new = sub(%w, %x) : f32[8]
      %both = mul(%w, %new) : f32[8]
      return %both as "y", %new as "w" -> %w
    })");
  const Plan plan = PlanOf(*graph);
  ASSERT_EQ(plan.steps.size(), 3);
  EXPECT_EQ(plan.steps[2].op_class, "copy");
  EXPECT_EQ(plan.outputs[1].buffer, plan.steps[2].args[1]);
  EXPECT_THAT(Print(plan), HasSubstr("%new.copy"));
}

TEST(BuildPlan, CopiesStateThatALibraryCallCannotWriteOver) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %w = weight : f32[4,4]
      %new = matmul(%w, %w) : f32[4,4]
      return %new as "w" -> %w
    })");
  const Plan plan = PlanOf(*graph);
  ASSERT_EQ(plan.steps.size(), 2);
  EXPECT_EQ(plan.steps[1].op_class, "copy");
}

TEST(BuildPlan, SwapsStatesThroughASavedCopy) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %a = optimizer_state : f32[4]
      %b = optimizer_state : f32[4]
      return %b as "a" -> %a, %a as "b" -> %b, %a as "old"
    })");
  const Plan plan = PlanOf(*graph);
  const auto inputs = test::RandomInputs(*graph, 1);
  ExpectNear(Interpret(*graph, inputs, ir::EvalMode::kTyped),
             test::RunPlan(plan, inputs), 0);
}

TEST(BuildPlan, LeavesUnchangedStateAndInputsWhereTheyAre) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %x = data : f32[4]
      %w = weight : f32[4]
      return %w as "w" -> %w, %x as "x", %w as "copy of w"
    })");
  const Plan plan = PlanOf(*graph);
  EXPECT_TRUE(plan.steps.empty());
  EXPECT_EQ(plan.outputs[2].buffer, plan.inputs[1].buffer);
}

TEST(BuildPlan, KeepsCountersThatTheProgramUpdates) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %step = hyper_parameter : i32[]
      %lr = hyper_parameter : f32[]
      %next = neg(%step) : i32[]
      %y = neg(%lr) : f32[]
      return %next as "step" -> %step, %y as "y"
    })");
  const StateLayout layout = StateOf(PlanOf(*graph));
  ASSERT_EQ(layout.entries.size(), 1);
  EXPECT_EQ(layout.entries[0].name, "step");
}

TEST(BuildPlan, ViewsNeedNeitherStepNorBuffer) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %x = data : f32[2,6]
      %a = neg(%x) : f32[2,6]
      %b = reshape(%a) {shape=[3,4]} : f32[3,4]
      %c = neg(%b) : f32[3,4]
      %d = reshape(%c) {shape=[12]} : f32[12]
      return %d as "y"
    })");
  const Plan plan = PlanOf(*graph);
  EXPECT_EQ(plan.steps.size(), 2);
  EXPECT_EQ(plan.buffers.size(), 3);
  EXPECT_EQ(plan.outputs[0].buffer, plan.steps[1].args[1]);
}

TEST(BuildPlan, ReordersElementsThatOnlyLookLikeAView) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %x = data : f32[2,16,3]
      %blocked = copy(%x) {layout="aBc8b"} : f32[2,16,3]{aBc8b}
      %flat = copy(%blocked) {layout=""} : f32[2,16,3]
      %one = data : f32[2,8,1]
      %same = copy(%one) {layout="aBc8b"} : f32[2,8,1]{aBc8b}
      return %flat as "y", %same as "z"
    })");
  const Plan plan = PlanOf(*graph);
  EXPECT_EQ(plan.steps.size(), 2);
  EXPECT_EQ(plan.outputs[1].buffer, plan.inputs[1].buffer);
}

TEST(BuildPlan, SharesTheSessionsState) {
  const auto train = test::ParseOrDie(R"(
    graph train {
      %x = data : f32[8]
      %m = statistic : f32[8]
      %w = weight : f32[8]
      %new = sub(%w, %x) : f32[8]
      %mean = add(%m, %x) : f32[8]
      return %new as "w" -> %w, %mean as "m" -> %m
    })");
  const auto eval = test::ParseOrDie(R"(
    graph eval {
      %x = data : f32[8]
      %w = weight : f32[8]
      %y = sub(%w, %x) : f32[8]
      return %y as "y"
    })");
  const StateLayout layout = StateOf(PlanOf(*train));
  ASSERT_EQ(layout.entries.size(), 2);
  EXPECT_EQ(layout.Find("w")->offset, 0);  // parameters first
  EXPECT_EQ(layout.Find("m")->offset, 64);
  EXPECT_EQ(layout.bytes, 128);
  const Plan plan = PlanOf(*eval, {.state = &layout});
  EXPECT_EQ(BufferOf(plan, "w").offset, layout.Find("w")->offset);
  EXPECT_EQ(plan.arenas[BufferOf(plan, "w").arena].bytes, layout.bytes);
}

TEST(BuildPlan, RejectsStateThatTheSessionLacks) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %w = weight : f32[8]
      %y = neg(%w) : f32[8]
      return %y as "y"
    })");
  const StateLayout missing;
  EXPECT_THROW(PlanOf(*graph, {.state = &missing}), Error);
  const StateLayout other{{{"w", {ir::DType::kF32, {9}, {}}, 0}}, 64};
  try {
    PlanOf(*graph, {.state = &other});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    EXPECT_THAT(error.what(), HasSubstr("expected f32[9]"));
  }
}

// --- Joined updates --------------------------------------------------------

void ExpectJoined(test::Gradients gradients, size_t copies) {
  const test::FakeCompiler compiler;
  const auto graph = test::UpdateGraph(gradients);
  const test::Planned planned = test::FuseAndPlan(*graph, compiler);
  VerifyPlan(planned.plan, *planned.graph);
  size_t launches = 0;
  size_t found = 0;
  for (const Step& step : planned.plan.steps) {
    launches += step.kind == StepKind::kLaunch ? 1 : 0;
    found += step.op_class == "copy" ? 1 : 0;
  }
  EXPECT_EQ(launches, 1);
  EXPECT_EQ(found, copies);
  const auto inputs = test::RandomInputs(*graph, 3);
  ExpectNear(Interpret(*graph, inputs, ir::EvalMode::kTyped),
             test::RunPlan(planned.plan, inputs), 1e-5);
}

TEST(BuildPlan, LaysOutStateAndGradientsForJoinedUpdates) {
  ExpectJoined(test::Gradients::kComputed, 0);
}

TEST(BuildPlan, LaysOutGradientsThatAreInputs) {
  ExpectJoined(test::Gradients::kData, 0);
}

TEST(BuildPlan, CopiesAGradientThatSeveralUpdatesShare) {
  ExpectJoined(test::Gradients::kShared, 2);
}

TEST(BuildPlan, ParametersComeBeforeTheirMomentaInOneOrder) {
  const test::FakeCompiler compiler;
  const auto graph = test::UpdateGraph(test::Gradients::kComputed);
  const Plan plan = test::FuseAndPlan(*graph, compiler).plan;
  const StateLayout layout = StateOf(plan);
  const int64_t momenta = layout.Find("m0")->offset;
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(layout.Find(fmt::format("w{}", i))->offset + momenta,
              layout.Find(fmt::format("m{}", i))->offset);
  }
}

TEST(BuildPlan, RejectsAStateLayoutThatTearsAJoinedUpdate) {
  const test::FakeCompiler compiler;
  const auto graph = test::UpdateGraph(test::Gradients::kComputed);
  StateLayout layout = StateOf(test::FuseAndPlan(*graph, compiler).plan);
  std::swap(layout.entries[0].offset, layout.entries[4].offset);
  EXPECT_THROW(test::FuseAndPlan(*graph, compiler, {.state = &layout}), Error);
}

// --- Memory, kernels, errors -----------------------------------------------

TEST(BuildPlan, NamesTheLargestBuffersWhenMemoryIsShort) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %x = data : f32[1000]
      %a = neg(%x) : f32[1000] @"layer1"
      %b = exp(%a) : f32[1000] @"layer2"
      %c = mul(%a, %b) : f32[1000]
      %d = neg(%c) : f32[1000]
      return %d as "y"
    })");
  try {
    PlanOf(*graph, {.memory_limit_bytes = 9000});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.what(), HasSubstr("a at layer1 4000 bytes"));
    EXPECT_THAT(error.what(), HasSubstr("9000"));
  }
  PlanOf(*graph, {.memory_limit_bytes = 20000});
}

TEST(BuildPlan, ComputesInPlaceWhereTheKernelAllowsIt) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %x = data : f32[1000]
      %a = exp(%x) : f32[1000]
      %b = exp(%a) : f32[1000]
      %c = exp(%b) : f32[1000]
      %d = exp(%c) : f32[1000]
      return %d as "y"
    })");
  const Plan plan = PlanOf(*graph);
  EXPECT_EQ(plan.peak_bytes, PadToAlignment(4000));
  EXPECT_EQ(plan.lower_bound_bytes, plan.peak_bytes);
}

TEST(BuildPlan, CompilesEqualKernelsOnce) {
  const test::FakeCompiler compiler;
  ir::Graph graph("g");
  ir::Builder b(graph);
  for (int i = 0; i < 6; ++i) {
    ir::Value* x = graph.AddInput({ir::DType::kF32, {64, 128}, {}},
                                  ir::InputRole::kData, "x");
    ir::Value* y = graph.AddInput({ir::DType::kF32, {128, 64}, {}},
                                  ir::InputRole::kData, "y");
    graph.AddOutput(b.Matmul(b.Exp(b.Neg(x)), y), fmt::format("y{}", i));
  }
  const Plan plan = test::FuseAndPlan(graph, compiler).plan;
  EXPECT_EQ(plan.steps.size(), 12);
  EXPECT_EQ(plan.kernels.size(), 1);
  EXPECT_EQ(plan.calls.size(), 1);
}

TEST(BuildPlan, IsDeterministic) {
  const test::FakeCompiler compiler;
  const auto graph = test::RandomGraph(7, {.nodes = 60, .states = true});
  const std::string first = Print(test::FuseAndPlan(*graph, compiler).plan);
  EXPECT_EQ(first, Print(test::FuseAndPlan(*graph, compiler).plan));
}

TEST(BuildPlan, UnfusedConstantsHaveTheirOwnArena) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %x = data : f16[4]
      %c = constant() {dtype="f16", shape=[4], value=[1.0, 2.0, 3.0, 0.1]} : f16[4]
      %y = mul(%x, %c) : f16[4]
      return %y as "y"
    })");
  const Plan plan = PlanOf(*graph);
  ASSERT_EQ(plan.constants.size(), 1);
  EXPECT_EQ(plan.constants[0].bytes.size(), 8);
  EXPECT_EQ(plan.arenas[BufferOf(plan, "c").arena].kind, ArenaKind::kConstant);
}

}  // namespace
}  // namespace fusor::codegen
