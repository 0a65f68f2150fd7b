#include "ir/builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "ir/op.h"
#include "ir/support/error.h"
#include "tests/testing/numeric.h"

namespace fusor::ir {
namespace {

using test::AllClose;
using test::MakeTensor;
using test::RandomTensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TensorType F64(Shape shape) { return {DType::kF64, std::move(shape), {}}; }

// A graph whose inputs have values.
struct Program {
  Graph graph;
  Builder b{graph};
  std::vector<Tensor> inputs;

  Value* In(Tensor tensor) {
    inputs.push_back(std::move(tensor));
    return graph.AddInput(inputs.back().type, InputRole::kData, "x");
  }
  Value* Random(Shape shape, uint64_t seed, double low = -1, double high = 1) {
    return In(RandomTensor(F64(std::move(shape)), seed, low, high));
  }
  Tensor Run(Value* value) {
    graph.AddOutput(value, "y");
    return Interpret(graph, inputs, EvalMode::kExact).back();
  }
};

int64_t CountOps(const Graph& graph, std::string_view op) {
  return std::count_if(graph.nodes().begin(), graph.nodes().end(),
                       [&](const auto& n) { return n->op_name() == op; });
}

// --- Locations, insertion ----------------------------------------------------

TEST(Builder, ScopesNestInTheLocation) {
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput(F64({2}), InputRole::kData, "x");
  {
    const Builder::Scope layer(b, "layer3");
    EXPECT_EQ(b.Neg(x)->producer()->location().path, "layer3");
    {
      const Builder::Scope block(b, "1");
      EXPECT_EQ(b.Neg(x)->producer()->location().path, "layer3.1");
    }
    EXPECT_EQ(b.location(), "layer3");
  }
  EXPECT_EQ(b.Neg(x)->producer()->location().path, "");
}

TEST(Builder, BuildsBeforeTheInsertionPoint) {
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput(F64({2}), InputRole::kData, "x");
  Node* last = b.Neg(x)->producer();
  b.set_insertion_point(last);
  EXPECT_EQ(b.Exp(x)->producer()->position(), 0);
  EXPECT_EQ(b.Abs(x)->producer()->position(), 1);
  EXPECT_EQ(last->position(), 2);
}

// --- Broadcasting ------------------------------------------------------------

TEST(Builder, BinaryOpsBroadcastAsNumpyDoes) {
  Program p;
  Value* column = p.In(MakeTensor(F64({2, 1}), {1, 2}));
  Value* row = p.In(MakeTensor(F64({3}), {10, 20, 30}));
  const Tensor y = p.Run(p.b.Plus(column, row));
  EXPECT_EQ(y.type.shape, (Shape{2, 3}));
  EXPECT_THAT(y.data, ElementsAre(11, 21, 31, 12, 22, 32));
  Value* scalar = p.b.Scalar(DType::kF64, 5);
  EXPECT_THAT(p.Run(p.b.Minus(scalar, row)).data, ElementsAre(-5, -15, -25));
  EXPECT_THAT(p.Run(p.b.Compare("gt", row, scalar)).data, ElementsAre(1, 1, 1));
}

TEST(Builder, OperandsOfEqualShapeNeedNoBroadcast) {
  Program p;
  Value* x = p.Random({2, 3}, 1);
  p.b.Plus(x, x);
  p.b.Plus(x, 3.0);
  EXPECT_EQ(CountOps(p.graph, "broadcast"), 0);
}

TEST(Builder, ShapesThatDoNotBroadcastAreNamed) {
  Program p;
  Value* x = p.Random({2, 3}, 1);
  Value* y = p.Random({4}, 2);
  try {
    p.b.Plus(x, y);
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kGraph);
    EXPECT_THAT(
        e.what(),
        HasSubstr("add(f64[2,3], f64[4]) at tests/ir/builder_test.cc:"));
  }
}

TEST(Builder, ScalarsTakeTheOperandsLayout) {
  Program p;
  Value* x = p.b.Copy(p.Random({1, 16, 2, 2}, 1), ParseLayout("aBcd16b"));
  EXPECT_EQ(p.b.Times(x, 2.0)->type(), x->type());
  EXPECT_EQ(p.b.Zeros(x->type())->type(), x->type());
  Value* bias = p.Random({16}, 2);
  EXPECT_EQ(p.b.BroadcastAlong(bias, x->type(), 1)->type(), x->type());
}

// --- Shortcuts ---------------------------------------------------------------

TEST(Builder, NothingIsBuiltForIdentities) {
  Program p;
  Value* x = p.Random({2, 3}, 1);
  EXPECT_EQ(p.b.Cast(x, DType::kF64), x);
  EXPECT_EQ(p.b.Reshape(x, {2, 3}), x);
  EXPECT_EQ(p.b.Broadcast(x, {2, 3}, {0, 1}), x);
  EXPECT_EQ(p.b.BroadcastTo(x, {2, 3}), x);
  EXPECT_EQ(p.b.Copy(x, {}), x);
  EXPECT_EQ(p.b.ReduceSum(x, {}), x);
  EXPECT_TRUE(p.graph.nodes().empty());
}

TEST(Builder, ConstantsAreRoundedWhenTypedEvaluationMeetsThem) {
  Program p;
  p.graph.AddOutput(p.b.Scalar(DType::kF16, 0.1), "half");
  p.graph.AddOutput(p.b.Scalar(DType::kI32, 2.7), "int");
  const auto typed = Interpret(p.graph, {}, EvalMode::kTyped);
  EXPECT_EQ(typed[0].data[0], RoundTo(DType::kF16, 0.1));
  EXPECT_EQ(typed[1].data[0], 2);
  const auto exact = Interpret(p.graph, {}, EvalMode::kExact);
  EXPECT_EQ(exact[0].data[0], 0.1);
  EXPECT_EQ(exact[1].data[0], 2);
}

TEST(Builder, RandomSitesAreUnique) {
  Program p;
  Value* key = p.graph.AddInput({DType::kI64, {}, {}},
                                InputRole::kHyperParameter, "key");
  Value* step = p.graph.AddInput({DType::kI32, {}, {}},
                                 InputRole::kHyperParameter, "step");
  std::set<int64_t> sites;
  for (int i = 0; i < 5; ++i) {
    const Node* node = p.b.Random(key, step, {2})->producer();
    EXPECT_TRUE(sites.insert(node->attrs().Int("site")).second);
    if (i == 2) {  // an erased node's neighbour keeps its site
      Node* dead = p.b.Random(key, step, {2})->producer();
      p.graph.Erase(dead);
    }
  }
}

// --- Composites --------------------------------------------------------------

TEST(Composite, LinearMultipliesByTheTransposedWeight) {
  Program p;
  Value* x = p.In(MakeTensor(F64({1, 2}), {1, 2}));
  Value* w = p.In(MakeTensor(F64({3, 2}), {1, 0, 0, 1, 1, 1}));
  Value* bias = p.In(MakeTensor(F64({3}), {10, 20, 30}));
  EXPECT_THAT(p.Run(p.b.Linear(x, w, bias)).data, ElementsAre(11, 22, 33));
  EXPECT_THAT(p.Run(p.b.Linear(x, w, nullptr)).data, ElementsAre(1, 2, 3));
}

TEST(Composite, SoftmaxSurvivesLargeLogits) {
  Program p;
  Value* x = p.In(MakeTensor(F64({2, 2}), {1000, 1000, -2000, 0}));
  EXPECT_THAT(p.Run(p.b.Softmax(x)).data, ElementsAre(0.5, 0.5, 0, 1));
  EXPECT_THAT(p.Run(p.b.LogSoftmax(x)).data,
              ElementsAre(-std::log(2), -std::log(2), -2000, 0));
}

TEST(Composite, ActivationsFollowTheirFormulas) {
  Program p;
  Value* x = p.Random({20}, 1, -4, 4);
  const Tensor sigmoid = p.Run(p.b.Sigmoid(x));
  const Tensor gelu = p.Run(p.b.Gelu(x));
  for (size_t i = 0; i < 20; ++i) {
    const double v = p.inputs[0].data[i];
    EXPECT_NEAR(sigmoid.data[i], 1 / (1 + std::exp(-v)), 1e-15);
    EXPECT_NEAR(gelu.data[i], v / 2 * std::erfc(-v * M_SQRT1_2), 1e-15);
  }
}

TEST(Composite, LayerNormGivesZeroMeanAndUnitVariance) {
  Program p;
  Value* x = p.Random({3, 50}, 1, 2, 7);
  Value* gamma = p.b.Constant(DType::kF64, {50}, {1});
  Value* beta = p.b.Constant(DType::kF64, {50}, {0});
  const Tensor y = p.Run(p.b.LayerNorm(x, gamma, beta, 0));
  for (int row = 0; row < 3; ++row) {
    double sum = 0, squares = 0;
    for (int i = 0; i < 50; ++i) {
      const double v = y.data[row * 50 + i];
      sum += v;
      squares += v * v;
    }
    EXPECT_NEAR(sum, 0, 1e-12);
    EXPECT_NEAR(squares / 50, 1, 1e-12);
  }
}

TEST(Composite, BatchNormInferenceAgreesWithTrainingOnItsStatistics) {
  Program p;
  Value* x = p.Random({4, 3, 2, 2}, 1);
  Value* gamma = p.Random({3}, 2);
  Value* beta = p.Random({3}, 3);
  const auto bn = p.b.BatchNormTrain(x, gamma, beta, 1e-3);
  Value* again =
      p.b.BatchNormInference(x, gamma, beta, bn.mean, bn.variance, 1e-3);
  EXPECT_TRUE(AllClose(p.Run(again), p.Run(bn.y), 1e-12, 1e-13));
}

TEST(Composite, DropoutKeepsTheExpectationAndZeroesTheRest) {
  Program p;
  Value* x = p.b.Constant(DType::kF32, {10000}, {1});
  Value* key = p.In(MakeTensor({DType::kI64, {}, {}}, {5}));
  Value* step = p.In(MakeTensor({DType::kI32, {}, {}}, {0}));
  const Tensor y = p.Run(p.b.Dropout(x, 0.25, key, step));
  int64_t dropped = 0;
  for (double v : y.data) {
    if (v == 0) {
      ++dropped;
    } else {
      EXPECT_NEAR(v, 4.0 / 3, 1e-7);
    }
  }
  // Four standard deviations of a binomial count.
  EXPECT_NEAR(static_cast<double>(dropped), 2500, 4 * std::sqrt(1875));
  EXPECT_EQ(p.b.Dropout(x, 0, key, step), x);
  EXPECT_THROW(p.b.Dropout(x, 1, key, step), Error);
  EXPECT_THROW(p.b.Dropout(x, -0.1, key, step), Error);
}

TEST(Composite, AdaptivePoolUsesTheWindowsOfTorch) {
  for (const auto& [out_h, out_w] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {7, 7}, {3, 2}, {9, 5}}) {
    Program p;
    constexpr int64_t kH = 6, kW = 5;
    Value* x = p.Random({2, 2, kH, kW}, 1);
    const Tensor y = p.Run(p.b.AdaptiveAvgPool2d(x, out_h, out_w));
    ASSERT_EQ(y.type.shape, (Shape{2, 2, out_h, out_w}));
    size_t at = 0;
    for (int64_t plane = 0; plane < 4; ++plane) {
      for (int64_t i = 0; i < out_h; ++i) {
        for (int64_t j = 0; j < out_w; ++j) {
          const auto end = [](int64_t n, int64_t in, int64_t out) {
            return (n * in + out - 1) / out;
          };
          double sum = 0;
          int64_t count = 0;
          for (int64_t h = i * kH / out_h; h < end(i + 1, kH, out_h); ++h) {
            for (int64_t w = j * kW / out_w; w < end(j + 1, kW, out_w); ++w) {
              sum += p.inputs[0].data[(plane * kH + h) * kW + w];
              ++count;
            }
          }
          EXPECT_NEAR(y.data[at++], sum / static_cast<double>(count), 1e-14);
        }
      }
    }
  }
}

TEST(Composite, AdaptivePoolOfEqualWindowsIsAnAveragePool) {
  Program p;
  Value* x = p.Random({1, 2, 14, 14}, 1);
  p.b.AdaptiveAvgPool2d(x, 7, 7);
  EXPECT_EQ(CountOps(p.graph, "avg_pool"), 1);
  EXPECT_EQ(CountOps(p.graph, "matmul"), 0);
  EXPECT_EQ(p.b.AdaptiveAvgPool2d(x, 14, 14), x);
}

TEST(Composite, CrossEntropyPicksTheLabelAndSmooths) {
  Program p;
  Value* logits = p.Random({3, 4}, 1, -3, 3);
  Value* labels = p.In(MakeTensor({DType::kI32, {3}, {}}, {2, 0, 3}));
  const Tensor plain = p.Run(p.b.CrossEntropy(logits, labels, {}));
  const Tensor smooth =
      p.Run(p.b.CrossEntropy(logits, labels, {.label_smoothing = 0.1}));
  for (int n = 0; n < 3; ++n) {
    const double* row = &p.inputs[0].data[n * 4];
    double sum = 0, mean = 0;
    for (int c = 0; c < 4; ++c) sum += std::exp(row[c]);
    for (int c = 0; c < 4; ++c) mean += (std::log(sum) - row[c]) / 4;
    const double own =
        std::log(sum) - row[static_cast<int>(p.inputs[1].data[n])];
    EXPECT_NEAR(plain.data[n], own, 1e-14);
    EXPECT_NEAR(smooth.data[n], 0.9 * own + 0.1 * mean, 1e-14);
  }
}

TEST(Composite, CrossEntropyRefusesWrongOperands) {
  Program p;
  Value* logits = p.Random({3, 4}, 1);
  Value* few = p.In(MakeTensor({DType::kI32, {2}, {}}, {0, 1}));
  EXPECT_THROW(p.b.CrossEntropy(logits, few, {}), Error);
  EXPECT_THROW(p.b.CrossEntropy(logits, logits, {}), Error);
  Value* labels = p.In(MakeTensor({DType::kI32, {3}, {}}, {0, 1, 2}));
  EXPECT_THROW(p.b.CrossEntropy(logits, labels, {.label_smoothing = 1}), Error);
}

TEST(Composite, TopKBreaksTiesByIndexAndNeverFindsNan) {
  Program p;
  Value* logits =
      p.In(MakeTensor(F64({4, 3}), {1, 2, 3, 5, 5, 5, NAN, 1, 0, 0, NAN, 1}));
  Value* labels = p.In(MakeTensor({DType::kI32, {4}, {}}, {1, 1, 0, 2}));
  EXPECT_THAT(p.Run(p.b.TopKCorrect(logits, labels, 1)).data,
              ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(p.Run(p.b.TopKCorrect(logits, labels, 2)).data,
              ElementsAre(1, 1, 0, 1));
}

TEST(Composite, GlobalAvgPoolIsTheMeanOfThePlane) {
  Program p;
  Value* x = p.In(MakeTensor(F64({1, 2, 1, 2}), {1, 3, 10, 30}));
  EXPECT_THAT(p.Run(p.b.GlobalAvgPool(x)).data, ElementsAre(2, 20));
}

}  // namespace
}  // namespace fusor::ir
