#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "codegen/compile_kernels.h"
#include "codegen/plan/plan.h"
#include "codegen/plan/verify_plan.h"
#include "ir/support/error.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/plan_runner.h"
#include "tests/testing/random_graph.h"
#include "tests/testing/update_graph.h"

namespace fusor::codegen {
namespace {

using ::testing::HasSubstr;

Plan SomePlan(uint64_t seed) {
  const test::FakeCompiler compiler;
  const auto graph =
      seed == 0 ? test::UpdateGraph(test::Gradients::kShared)
                : test::RandomGraph(
                      seed, {.nodes = 30,
                             .dtypes = {ir::DType::kF32, ir::DType::kBF16},
                             .layouts = true,
                             .states = true});
  Plan plan = test::FuseAndPlan(*graph, compiler).plan;
  CompileKernels(plan, compiler, {});
  return plan;
}

TEST(SerializePlan, RoundTripsWholePlans) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Plan plan = SomePlan(seed);
    if (plan.steps.size() < 2) continue;
    // Sets fields that a plan for one stream leaves empty.
    plan.num_events = 1;
    for (LibraryCall& call : plan.calls)
      call.plan = "of " + std::string(call.op_name());
    plan.steps[0].records = 0;
    plan.steps.back().stream = 3;
    plan.steps.back().waits = {0};
    for (size_t s = 1; s < plan.steps.size(); ++s) {
      plan.steps[s].stream = 3;
      plan.steps[s].waits = {0};
    }
    const std::string bytes = SerializePlan(plan);
    const Plan again = ParsePlan(bytes);
    EXPECT_EQ(Print(again), Print(plan));
    EXPECT_EQ(SerializePlan(again), bytes);
    for (size_t k = 0; k < plan.kernels.size(); ++k) {
      EXPECT_EQ(again.kernels[k].binary, plan.kernels[k].binary);
    }
    for (size_t c = 0; c < plan.calls.size(); ++c) {
      EXPECT_EQ(again.calls[c].plan, plan.calls[c].plan);
    }
    for (size_t c = 0; c < plan.constants.size(); ++c) {
      EXPECT_EQ(again.constants[c].bytes, plan.constants[c].bytes);
    }
  }
}

TEST(SerializePlan, RejectsPlansThatVerifyPlanRejects) {
  Plan plan = SomePlan(1);
  plan.steps.pop_back();
  try {
    ParsePlan(SerializePlan(plan));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    EXPECT_THAT(error.what(), HasSubstr("plan: "));
  }
}

TEST(SerializePlan, RejectsCallsOfUnknownOps) {
  Plan plan = SomePlan(1);
  plan.calls.push_back({.op = ir::OpKind::kSumOfSquares});
  std::string bytes = SerializePlan(plan);
  bytes.replace(bytes.find("sum_of_squares"), 3, "mum");
  try {
    ParsePlan(bytes);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    EXPECT_THAT(error.what(), HasSubstr("unknown op mum_of_squares"));
  }
}

TEST(SerializePlan, DamagedBytesAreAnErrorNeverACrash) {
  std::mt19937_64 engine(1);
  int rejected = 0;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const std::string bytes = SerializePlan(SomePlan(seed));
    for (int round = 0; round < 400; ++round) {
      std::string damaged = bytes;
      if (round % 4 == 0) {
        damaged.resize(engine() % bytes.size());
      } else {
        damaged[engine() % bytes.size()] ^=
            static_cast<char>(1 << (engine() % 8));
      }
      try {
        // A name may have changed, but an accepted plan must be valid.
        VerifyPlan(ParsePlan(damaged));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kGraph) << error.what();
        ++rejected;
      }
    }
  }
  EXPECT_GT(rejected, 400);
  EXPECT_THROW(ParsePlan("not a plan"), Error);
  EXPECT_THROW(ParsePlan(""), Error);
}

}  // namespace
}  // namespace fusor::codegen
