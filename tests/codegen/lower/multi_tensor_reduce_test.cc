#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

#include "codegen/lower/lower.h"
#include "ir/builder.h"
#include "ir/io/printer.h"
#include "passes/passes.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/kernel_runner.h"
#include "tests/testing/numeric.h"
#include "tests/testing/plan_runner.h"
#include "tests/testing/update_graph.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::Tensor;
using ::testing::ElementsAre;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns the kernel's result for operands of these sizes. Only `element` of
// `operand` is set to `value`.
bool Finite(DType dtype, int threads, size_t operand, size_t element,
            double value) {
  ir::Graph graph;
  std::vector<ir::Value*> operands;
  std::vector<Tensor> tensors;
  for (const int64_t size : {3, 21, 1000, 20000}) {
    const ir::TensorType type{dtype, {size}, {}};
    operands.push_back(graph.AddInput(type, ir::InputRole::kData, "x"));
    tensors.push_back(test::RandomTensor(type, 1));
  }
  tensors[operand].data[element] = value;
  graph.AddOutput(graph.AddNode("all_finite", operands, {})->output(), "y");
  const test::BareTarget queries;
  passes::PassContext context(queries, {});
  passes::Fuse(graph, context);
  return test::RunWithKernels(graph, tensors,
                              ir::WithThreads(queries.target(), threads))[0]
             .data[0] != 0;
}

TEST(FiniteKernel, FindsOneElementWhereverItIs) {
  for (const int threads : {1, 2, 16}) {
    SCOPED_TRACE(threads);
    for (const double value : {kNan, kInfinity, -kInfinity}) {
      EXPECT_FALSE(Finite(DType::kF32, threads, 0, 0, value));
      EXPECT_FALSE(Finite(DType::kF32, threads, 0, 2, value));
      EXPECT_FALSE(Finite(DType::kF32, threads, 1, 20, value));
      EXPECT_FALSE(Finite(DType::kF32, threads, 2, 999, value));
      for (const size_t element : {0, 1, 9999, 15000, 19998, 19999}) {
        EXPECT_FALSE(Finite(DType::kF32, threads, 3, element, value));
      }
    }
  }
}

TEST(FiniteKernel, TakesTheLargestNumberOfEachDtype) {
  EXPECT_TRUE(Finite(DType::kF64, 2, 3, 7, 1e308));
  EXPECT_TRUE(Finite(DType::kF32, 2, 3, 7, 3.4e38));
  EXPECT_TRUE(Finite(DType::kBF16, 2, 3, 7, -3.38e38));
  EXPECT_TRUE(Finite(DType::kF16, 2, 3, 7, 65504));
  for (const DType dtype :
       {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    EXPECT_FALSE(Finite(dtype, 2, 3, 7, kInfinity));
    EXPECT_FALSE(Finite(dtype, 2, 1, 0, kNan));
  }
}

// Returns updates, and an op on all their gradients as the output "all".
std::unique_ptr<ir::Graph> UpdatesWith(std::string_view op) {
  auto graph = test::UpdateGraph(test::Gradients::kComputed);
  std::vector<ir::Value*> gradients;
  for (const auto& node : graph->nodes()) {
    if (node->op_name() == "matmul") gradients.push_back(node->output());
  }
  graph->AddOutput(graph->AddNode(op, gradients, {})->output(), "all");
  return graph;
}

// Returns the groups of operands that a node reads as one range.
std::vector<int64_t> GroupsOf(const ir::Graph& graph) {
  for (const auto& node : graph.nodes()) {
    if (node->body() == nullptr) continue;
    const ir::Attrs& attrs = node->body()->nodes()[0]->attrs();
    if (attrs.Has("groups")) return attrs.Ints("groups");
  }
  return {};
}

// Checks gradients for finite values in the contiguous ranges that updates
// read. Memory outside of tensors contains NaN.
TEST(FiniteKernel, ReadsWhatUpdatesReadInOneLoopWithoutThePadding) {
  const auto graph = UpdatesWith("all_finite");
  const test::FakeCompiler compiler;
  const test::Planned planned = test::FuseAndPlan(*graph, compiler);
  EXPECT_THAT(GroupsOf(*planned.graph), ElementsAre(4))
      << ir::Print(*planned.graph);
  std::vector<Tensor> inputs;
  for (const ir::Input& input : planned.graph->inputs()) {
    inputs.push_back(test::RandomTensor(input.value->type(), 3));
  }
  const int finite = planned.graph->FindOutput("all");
  EXPECT_EQ(test::RunPlan(planned.plan, inputs)[finite].data[0], 1);
  for (const ir::Input& input : planned.graph->inputs()) {
    if (input.role != ir::InputRole::kData) continue;
    std::vector<Tensor> bad = inputs;
    bad[input.value->index()].data.back() = kInfinity;
    EXPECT_EQ(test::RunPlan(planned.plan, bad)[finite].data[0], 0)
        << input.value->name();
  }
}

// Sums of the squares of tensors of these sizes, by the kernel with and without
// contiguous operands, and exact.
struct Sums {
  double alone;
  double grouped;
  double exact;
};

Sums SumsOfSquares(DType dtype) {
  // Multiples of the alignment, so that contiguous tensors can be one run.
  const std::vector<int64_t> sizes = {64, 32, 1600, 300000};
  Sums sums{};
  for (const bool grouped : {false, true}) {
    ir::Graph graph;
    std::vector<ir::Value*> operands;
    std::vector<Tensor> tensors;
    sums.exact = 0;
    for (const int64_t size : sizes) {
      const ir::TensorType type{dtype, {size}, {}};
      operands.push_back(graph.AddInput(type, ir::InputRole::kWeight, "x"));
      tensors.push_back(test::RandomTensor(type, 1));
      for (const double x : tensors.back().data) sums.exact += x * x;
    }
    ir::Attrs attrs;
    if (grouped) attrs.Set("groups", std::vector<int64_t>{4});
    graph.AddOutput(graph.AddNode("sum_of_squares", operands, attrs)->output(),
                    "y");
    const test::FakeCompiler compiler;
    const test::Planned planned = test::FuseAndPlan(graph, compiler);
    (grouped ? sums.grouped : sums.alone) =
        test::RunPlan(planned.plan, tensors)[0].data[0];
    EXPECT_EQ(planned.plan.steps.size(), 1);
  }
  return sums;
}

TEST(SumOfSquares, IsExactToRoundingAndDoesNotDependOnGroups) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Sums sums = SumsOfSquares(dtype);
    EXPECT_NEAR(sums.alone / sums.exact, 1, 1e-6);
    EXPECT_EQ(sums.grouped, sums.alone);
  }
}

// Kernels must be valid for every number of threads.
TEST(SumOfSquares, AddsUpEveryElementWhateverTheNumberOfThreads) {
  for (const int threads : {1, 2, 16}) {
    ir::Graph graph;
    std::vector<ir::Value*> operands;
    std::vector<Tensor> tensors;
    double exact = 0;
    for (const int64_t size : {3, 21, 1000, 40000}) {
      const ir::TensorType type{DType::kF32, {size}, {}};
      operands.push_back(graph.AddInput(type, ir::InputRole::kData, "x"));
      tensors.push_back({type, std::vector<double>(size, 2)});
      exact += 4 * static_cast<double>(size);
    }
    graph.AddOutput(graph.AddNode("sum_of_squares", operands, {})->output(),
                    "y");
    const test::BareTarget queries;
    passes::PassContext context(queries, {});
    passes::Fuse(graph, context);
    EXPECT_EQ(test::RunWithKernels(
                  graph, tensors, ir::WithThreads(queries.target(), threads))[0]
                  .data[0],
              exact);
  }
}

bool SquaresAreContracted(bool eager) {
  ir::Graph graph;
  ir::Value* x =
      graph.AddInput({DType::kF32, {7}, {}}, ir::InputRole::kData, "x");
  graph.AddOutput(graph.AddNode("sum_of_squares", {x, x}, {})->output(), "y");
  const test::BareTarget queries;
  passes::PassContext context(queries, {.eager_rounding = eager});
  passes::Fuse(graph, context);
  return LowerFusion(*graph.nodes()[0], queries.target()).kernel.contract;
}

// With contraction, the last bit depended on whether an operand appears twice
// or once together with its copy.
TEST(SumOfSquares, IsNotContractedWithEagerRounding) {
  EXPECT_FALSE(SquaresAreContracted(true));
  EXPECT_TRUE(SquaresAreContracted(false));
}

// Fusion must not change the order of the sum, which depends on the groups.
TEST(SumOfSquares, KeepsItsOrderWithEagerRounding) {
  for (const bool eager : {false, true}) {
    const auto graph = UpdatesWith("sum_of_squares");
    const test::BareTarget queries;
    passes::PassContext context(queries, {.eager_rounding = eager});
    passes::Fuse(*graph, context);
    passes::FuseUpdates(*graph, context);
    EXPECT_EQ(GroupsOf(*graph).empty(), eager) << ir::Print(*graph);
  }
}

}  // namespace
}  // namespace fusor::codegen
