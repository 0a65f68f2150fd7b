#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ir/builder.h"
#include "ir/interpreter/interpreter.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "passes/training/training_state.h"
#include "tests/testing/numeric.h"

namespace fusor::passes {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::InputRole;
using ir::Value;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const ir::TensorType kScalar{DType::kF64, {}, {}};

int64_t Count(const Graph& graph, std::string_view op) {
  return std::count_if(graph.nodes().begin(), graph.nodes().end(),
                       [&](const auto& n) { return n->op_name() == op; });
}

// Returns the gradients' values for the given scalar inputs.
std::vector<double> Evaluate(Graph& graph, const std::vector<Value*>& values,
                             const std::vector<double>& inputs) {
  for (Value* value : values) graph.AddOutput(value, "gradient");
  std::vector<ir::Tensor> tensors;
  for (double x : inputs) tensors.push_back({kScalar, {x}});
  std::vector<double> results;
  for (const auto& t : Interpret(graph, tensors, ir::EvalMode::kExact)) {
    results.push_back(t.data[0]);
  }
  return results;
}

TEST(Autodiff, ContributionsOfAllUsesAddUp) {
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput(kScalar, InputRole::kWeight, "x");
  Value* y = b.Times(x, x);             // x^2
  Value* z = b.Times(y, b.Plus(y, x));  // x^4 + x^3
  const auto grads = BuildGradients(graph, z, std::vector<Value*>{x});
  EXPECT_THAT(Evaluate(graph, grads, {2}), ElementsAre(4 * 8 + 3 * 4));
}

TEST(Autodiff, ForwardNodesStayBeforeTheirGradients) {
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput(kScalar, InputRole::kWeight, "x");
  Value* loss = b.Exp(b.Tanh(x));
  std::vector<const ir::Node*> forward;
  for (const auto& node : graph.nodes()) forward.push_back(node.get());
  BuildGradients(graph, loss, std::vector<Value*>{x});
  ASSERT_GT(graph.nodes().size(), forward.size());
  for (size_t i = 0; i < forward.size(); ++i) {
    EXPECT_EQ(graph.nodes()[i].get(), forward[i]);
  }
}

TEST(Autodiff, BackwardNodesCarryTheirForwardNodesLocation) {
  Graph graph;
  Builder b(graph);
  Value* x =
      graph.AddInput({DType::kF32, {2, 3, 4, 4}, {}}, InputRole::kWeight, "x");
  Value* w =
      graph.AddInput({DType::kF32, {3, 3, 1, 1}, {}}, InputRole::kWeight, "w");
  b.set_location("layer1.conv");
  Value* y = b.Conv2d(x, w, nullptr, {});
  b.set_location("loss");
  Value* loss = b.ReduceSum(b.Times(y, y), {0, 1, 2, 3});
  const size_t forward = graph.nodes().size();
  BuildGradients(graph, loss, std::vector<Value*>{x, w});
  for (size_t i = forward; i < graph.nodes().size(); ++i) {
    const ir::Node& node = *graph.nodes()[i];
    const bool conv = node.op_name().starts_with("conv2d");
    EXPECT_EQ(node.location().path, conv ? "layer1.conv" : "loss")
        << node.op_name();
  }
}

TEST(Autodiff, BuildsNothingForInputsThatNeedNoGradient) {
  Graph graph;
  Builder b(graph);
  Value* image = graph.AddInput({DType::kF32, {1, 3, 4, 4}, {}},
                                InputRole::kData, "image");
  Value* w =
      graph.AddInput({DType::kF32, {2, 3, 1, 1}, {}}, InputRole::kWeight, "w");
  Value* scaled = b.Times(image, 0.5);
  Value* y = b.Conv2d(scaled, w, nullptr, {});
  Value* loss = b.ReduceSum(y, {0, 1, 2, 3});
  BuildGradients(graph, loss, std::vector<Value*>{w});
  EXPECT_EQ(Count(graph, "conv2d_grad_input"), 0);
  EXPECT_EQ(Count(graph, "conv2d_grad_weight"), 1);
  EXPECT_EQ(Count(graph, "mul"), 1);
}

TEST(Autodiff, LeavesNoNodeThatNoGradientNeeds) {
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput(kScalar, InputRole::kWeight, "x");
  Value* c = graph.AddInput(kScalar, InputRole::kData, "c");
  Value* loss = b.Pow(b.Maximum(x, c), c);
  const size_t forward = graph.nodes().size();
  const auto grads = BuildGradients(graph, loss, std::vector<Value*>{x});
  for (size_t i = forward; i < graph.nodes().size(); ++i) {
    const Value* value = graph.nodes()[i]->output();
    EXPECT_TRUE(!value->uses().empty() || value == grads[0])
        << value->name() << " is unused";
  }
}

TEST(Autodiff, ValuesTheLossDoesNotReachGetZeros) {
  Graph graph;
  Builder b(graph);
  const ir::TensorType type{DType::kF32, {2, 3}, {}};
  Value* x = graph.AddInput(type, InputRole::kWeight, "x");
  Value* y = graph.AddInput(type, InputRole::kWeight, "y");
  b.Neg(y);
  Value* loss = b.ReduceSum(x, {0, 1});
  const auto grads = BuildGradients(graph, loss, std::vector<Value*>{x, y});
  EXPECT_EQ(grads[1]->type(), type);
  graph.AddOutput(grads[1], "dy");
  const std::vector<ir::Tensor> inputs(2, {type, std::vector<double>(6, 1)});
  EXPECT_THAT(Interpret(graph, inputs, ir::EvalMode::kExact)[0].data,
              ::testing::Each(0));
}

TEST(Autodiff, StopGradientAndDiscreteOpsAreConstants) {
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput(kScalar, InputRole::kWeight, "x");
  Value* constants = b.Plus(b.StopGradient(x), b.Floor(x));
  Value* coin = b.Cast(b.Compare("gt", x, 0.0), DType::kF64);
  Value* loss = b.Times(x, b.Plus(constants, coin));
  const auto grads = BuildGradients(graph, loss, std::vector<Value*>{x});
  EXPECT_THAT(Evaluate(graph, grads, {2.5}), ElementsAre(2.5 + 2 + 1));
}

TEST(Autodiff, WrtMayBeAnIntermediateValueOrTheLossItself) {
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput(kScalar, InputRole::kWeight, "x");
  Value* y = b.Times(x, 3.0);
  Value* loss = b.Times(y, y);
  const auto grads =
      BuildGradients(graph, loss, std::vector<Value*>{loss, y, x});
  EXPECT_THAT(Evaluate(graph, grads, {2}), ElementsAre(1, 12, 36));
}

TEST(Autodiff, ResultsThatAreNotFloatingPointGetNoGradient) {
  Graph graph;
  Builder b(graph);
  Value* x =
      graph.AddInput({DType::kF32, {1, 1, 2, 2}, {}}, InputRole::kWeight, "x");
  const ir::Node* pool = b.MaxPool2d(x, {})->producer();
  Value* index = b.Cast(pool->output(1), DType::kF32);
  Value* loss = b.ReduceSum(b.Plus(pool->output(0), index), {0, 1, 2, 3});
  const auto grads = BuildGradients(graph, loss, std::vector<Value*>{x});
  graph.AddOutput(grads[0], "dx");
  const std::vector<ir::Tensor> inputs{{x->type(), {1, 4, 2, 3}}};
  EXPECT_THAT(Interpret(graph, inputs, ir::EvalMode::kExact)[0].data,
              ElementsAre(0, 1, 0, 0));
}

TEST(Autodiff, PowIsFlatWhereItsFormulasAreUndefined) {
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput(kScalar, InputRole::kWeight, "x");
  Value* p = graph.AddInput(kScalar, InputRole::kWeight, "p");
  const auto grads =
      BuildGradients(graph, b.Pow(x, p), std::vector<Value*>{x, p});
  EXPECT_THAT(Evaluate(graph, grads, {0, 2}), ElementsAre(0, 0));
  const auto at_zero = [&](double base, double exponent) {
    const std::vector<ir::Tensor> inputs{{kScalar, {base}},
                                         {kScalar, {exponent}}};
    return Interpret(graph, inputs, ir::EvalMode::kExact)[0].data[0];
  };
  EXPECT_EQ(at_zero(0, 0), 0);
}

template <typename Call>
std::string ErrorOf(Call call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Autodiff, RejectsALossThatIsNoFloatingPointScalar) {
  Graph graph;
  Value* x = graph.AddInput({DType::kF32, {2}, {}}, InputRole::kWeight, "x");
  Value* n = graph.AddInput({DType::kI32, {}, {}}, InputRole::kData, "n");
  const std::vector<Value*> wrt{x};
  EXPECT_THAT(ErrorOf([&] { BuildGradients(graph, x, wrt); }),
              HasSubstr("f32[2]"));
  EXPECT_THAT(ErrorOf([&] { BuildGradients(graph, n, wrt); }),
              HasSubstr("i32[]"));
}

TEST(Autodiff, RejectsOpsThatCannotBeDifferentiated) {
  Graph graph;
  Builder b(graph);
  Value* x =
      graph.AddInput({DType::kF32, {1, 1, 4, 4}, {}}, InputRole::kWeight, "x");
  b.set_location("pool");
  Value* y = b.AvgPool2d(x, {});
  Value* loss = b.ReduceSum(b.Times(y, y), {0, 1, 2, 3});
  const auto first = BuildGradients(graph, loss, std::vector<Value*>{x});
  Value* penalty = b.ReduceSum(b.Times(first[0], first[0]), {0, 1, 2, 3});
  EXPECT_THAT(
      ErrorOf([&] { BuildGradients(graph, penalty, std::vector<Value*>{x}); }),
      testing::MatchesRegex("avg_pool_grad at pool "
                            ".tests/passes/training/autodiff_test.cc:[0-9]+. "
                            "cannot be differentiated"));
}

TEST(Autodiff, RejectsACustomGradientOfAnotherShape) {
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput({DType::kF32, {4}, {}}, InputRole::kWeight, "x");
  b.set_location("clip");
  const auto build = [&](const std::vector<Value*>& gradients) {
    b.CustomGradient(b.Tanh(x), {x}, [&](Value*) { return gradients; });
  };
  EXPECT_THAT(ErrorOf([&] { build({b.ReduceSum(x, {0})}); }),
              HasSubstr("gradient of operand 0: expected f32[4], got f32[]"));
  EXPECT_THAT(ErrorOf([&] { build({}); }),
              HasSubstr("at clip (tests/passes/training/autodiff_test.cc:"));
}

TEST(Autodiff, RejectsGradientsOfBatchStatistics) {
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput({DType::kF32, {4, 2}, {}}, InputRole::kWeight, "x");
  Value* g = graph.AddInput({DType::kF32, {2}, {}}, InputRole::kNormScale, "g");
  const auto bn = b.BatchNormTrain(x, g, g, 1e-5);
  Value* loss = b.ReduceSum(bn.variance, {0});
  EXPECT_THAT(
      ErrorOf([&] { BuildGradients(graph, loss, std::vector<Value*>{x}); }),
      HasSubstr("stop_gradient"));
}

}  // namespace
}  // namespace fusor::passes
