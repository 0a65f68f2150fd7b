#include "codegen/build_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "codegen/storage.h"
#include "codegen/verify_plan.h"
#include "ir/support/error.h"
#include "tests/testing/fake_compiler.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/plan_runner.h"
#include "tests/testing/random_graph.h"

namespace fusor::codegen {
namespace {

using ::testing::HasSubstr;

// Plans the graph as it is, every node but fusions by the library.
Plan PlanOf(const ir::Graph& graph, const PlanOptions& options = {}) {
  const test::FakeCompiler compiler;
  Plan plan = BuildPlan(graph, test::LowerAll(graph, compiler.target()),
                        compiler, options);
  VerifyPlan(plan, graph);
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

}  // namespace
}  // namespace fusor::codegen
