// Layers and losses that the builder composes of primitive ops.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ir/builder.h"
#include "ir/support/error.h"
#include "passes/training/training_state.h"
#include "tests/ir/builder_program.h"
#include "tests/testing/numeric.h"

namespace fusor::ir {
namespace {

using test::AllClose;
using test::CountOps;
using test::ErrorOf;
using test::F64;
using test::MakeTensor;
using test::Program;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsNan;

TEST(Composite, LinearMultipliesByTheTransposedWeight) {
  Program p;
  Value* x = p.In(MakeTensor(F64({1, 2}), {1, 2}));
  Value* w = p.In(MakeTensor(F64({3, 2}), {1, 0, 0, 1, 1, 1}));
  Value* bias = p.In(MakeTensor(F64({3}), {10, 20, 30}));
  EXPECT_THAT(p.Run(p.b.Linear(x, w, bias)).data, ElementsAre(11, 22, 33));
  EXPECT_THAT(p.Run(p.b.Linear(x, w, nullptr)).data, ElementsAre(1, 2, 3));
}

TEST(Composite, LinearTakesAnyRank) {
  Program p;
  Value* x = p.Random({2, 4, 3, 5}, 1);
  Value* w = p.Random({6, 5}, 2);
  Value* bias = p.Random({6}, 3);
  const Tensor y = p.Run(p.b.Linear(x, w, bias));
  ASSERT_EQ(y.type.shape, (Shape{2, 4, 3, 6}));
  Value* flat = p.b.Linear(p.b.Reshape(x, {24, 5}), w, bias);
  EXPECT_EQ(y.data, p.Run(flat).data);
  Value* v = p.In(MakeTensor(F64({5}), {1, 2, 3, 4, 5}));
  EXPECT_EQ(p.Run(p.b.Linear(v, w, nullptr)).type.shape, Shape{6});
  EXPECT_EQ(CountOps(p.graph, "matmul"), 3);
  EXPECT_THROW(p.b.Linear(p.b.Scalar(DType::kF64, 1), w, nullptr), Error);
  EXPECT_THROW(p.b.Linear(x, bias, nullptr), Error);
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

// Expects PyTorch's values.
TEST(Composite, SiluRelu6ClampAndSoftplus) {
  Program p;
  Value* x = p.In(MakeTensor(F64({6}), {-50, -2, 0, 1, 6, 100}));
  const auto expect = [&](Value* y, std::vector<double> expected) {
    EXPECT_TRUE(
        AllClose(p.Run(y), MakeTensor(F64({6}), std::move(expected)), 1e-15));
  };
  expect(p.b.Silu(x), {-50 * 1.9287498479639178e-22, -0.2384058440442351, 0,
                       0.7310585786300049, 5.985164261060192, 100});
  expect(p.b.Relu6(x), {0, 0, 0, 1, 6, 6});
  expect(p.b.Clamp(x, -1, 3), {-1, -1, 0, 1, 3, 3});
  expect(p.b.Softplus(x),
         {1.9287498479639178e-22, 0.1269280110429726, 0.6931471805599453,
          1.3132616875182228, 6.00247568513773, 100});
  EXPECT_TRUE(AllClose(
      p.Run(p.b.Softplus(x, 2)),
      MakeTensor(F64({6}),
                 {std::exp(-100.0) / 2, std::log1p(std::exp(-4.0)) / 2,
                  std::log(2.0) / 2, 1 + std::log1p(std::exp(-2.0)) / 2,
                  6 + std::log1p(std::exp(-12.0)) / 2, 100}),
      1e-15));
  EXPECT_THROW(p.b.Softplus(x, 0), Error);
  EXPECT_THROW(p.b.Clamp(x, 1, -1), Error);
}

// e^100 is infinite in f32, which must not make a gradient NaN.
TEST(Composite, ActivationsAndGradientsAreFiniteForLargeOperands) {
  const TensorType type{DType::kF32, {4}, {}};
  for (const int which : {0, 1, 2, 3}) {
    Program p;
    Value* x = p.In(MakeTensor(type, {-1000, -100, 100, 1000}));
    Value* y = which == 0   ? p.b.Sigmoid(x)
               : which == 1 ? p.b.Silu(x)
               : which == 2 ? p.b.Softplus(x)
                            : p.b.Softplus(x, -1);
    Value* loss = p.b.ReduceSum(y, {0});
    const std::vector<Value*> wrt{x};
    p.graph.AddOutput(y, "y");
    p.graph.AddOutput(passes::BuildGradients(p.graph, loss, wrt)[0], "dx");
    for (const Tensor& t : Interpret(p.graph, p.inputs, EvalMode::kTyped)) {
      for (double v : t.data) EXPECT_TRUE(std::isfinite(v)) << which;
    }
  }
}

// As in PyTorch: 1/2 at 0 for smooth functions, 1 inside of clamp including its
// limits, and 0 at the limits of relu6.
TEST(Composite, GradientsAtTheKinksAreThoseOfTorch) {
  const auto slopes = [](auto build, std::vector<double> at) {
    Program p;
    const auto n = static_cast<int64_t>(at.size());
    Value* x = p.In(MakeTensor(F64({n}), std::move(at)));
    const std::vector<Value*> wrt{x};
    return p
        .Run(passes::BuildGradients(p.graph, p.b.ReduceSum(build(p.b, x), {0}),
                                    wrt)[0])
        .data;
  };
  EXPECT_THAT(slopes([](Builder& b, Value* x) { return b.Sigmoid(x); }, {0}),
              ElementsAre(0.25));
  EXPECT_THAT(slopes([](Builder& b, Value* x) { return b.Silu(x); }, {0}),
              ElementsAre(0.5));
  EXPECT_THAT(slopes([](Builder& b, Value* x) { return b.Softplus(x); }, {0}),
              ElementsAre(0.5));
  EXPECT_THAT(slopes([](Builder& b, Value* x) { return b.Clamp(x, -1, 1); },
                     {-2, -1, 0, 1, 2}),
              ElementsAre(0, 1, 1, 1, 0));
  EXPECT_THAT(
      slopes([](Builder& b, Value* x) { return b.Relu6(x); }, {-1, 0, 3, 6, 7}),
      ElementsAre(0, 0, 1, 0, 0));
}

TEST(Composite, LayerNormOverChannelsIsThatOfTheTransposedTensor) {
  Program p;
  Value* x = p.Random({2, 5, 3, 4}, 1);
  Value* gamma = p.Random({5}, 2);
  Value* beta = p.Random({5}, 3);
  Value* last =
      p.b.LayerNorm(p.b.Transpose(x, {0, 2, 3, 1}), gamma, beta, 1e-5);
  const Tensor expected = p.Run(p.b.Transpose(last, {0, 3, 1, 2}));
  EXPECT_TRUE(AllClose(p.Run(p.b.LayerNorm(x, gamma, beta, 1e-5, 1)), expected,
                       1e-13, 1e-14));
  EXPECT_TRUE(AllClose(p.Run(p.b.LayerNorm(x, gamma, beta, 1e-5, -3)), expected,
                       1e-13, 1e-14));
  EXPECT_THROW(p.b.LayerNorm(x, gamma, beta, 1e-5), Error);
  EXPECT_THROW(p.b.LayerNorm(x, gamma, beta, 1e-5, 2), Error);
}

TEST(Composite, LayerNormIsOverTheDimsOfGamma) {
  Program p;
  Value* x = p.Random({2, 3, 4}, 1);
  Value* gamma = p.Random({3, 4}, 2);
  Value* beta = p.Random({3, 4}, 3);
  const Tensor y = p.Run(p.b.LayerNorm(x, gamma, beta, 1e-5));
  Value* flat = p.b.LayerNorm(p.b.Reshape(x, {2, 12}), p.b.Reshape(gamma, {12}),
                              p.b.Reshape(beta, {12}), 1e-5);
  EXPECT_TRUE(AllClose(y, p.Run(p.b.Reshape(flat, {2, 3, 4})), 1e-13, 1e-14));
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
  // The tolerance is four standard deviations of the binomial count.
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

TEST(Composite, AdaptivePoolRejectsEmptyResultsAndOtherRanks) {
  Program p;
  Value* x = p.Random({2, 3, 4, 4}, 1);
  EXPECT_THAT(ErrorOf([&] { p.b.AdaptiveAvgPool2d(x, 0, 0); }),
              AllOf(HasSubstr("adaptive_avg_pool(f64[2,3,4,4]) at "),
                    HasSubstr("got 0 x 0")));
  EXPECT_THROW(p.b.AdaptiveAvgPool2d(x, 1, -2), Error);
  EXPECT_THROW(p.b.AdaptiveAvgPool2d(p.Random({3, 4}, 2), 1, 1), Error);
}

TEST(Composite, AdaptivePoolOfEqualWindowsIsAnAveragePool) {
  Program p;
  Value* x = p.Random({1, 2, 14, 14}, 1);
  p.b.AdaptiveAvgPool2d(x, 7, 7);
  EXPECT_EQ(CountOps(p.graph, "avg_pool"), 1);
  EXPECT_EQ(CountOps(p.graph, "matmul"), 0);
  EXPECT_EQ(p.b.AdaptiveAvgPool2d(x, 14, 14), x);
  p.b.AdaptiveAvgPool2d(x, 1, 1);
  p.b.AvgPool2d(x, {.window_h = 14, .window_w = 14});
  EXPECT_EQ(CountOps(p.graph, "avg_pool"), 1);
  EXPECT_EQ(CountOps(p.graph, "reduce"), 2);
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

// Dimensions after the classes are pixels, each with a label.
TEST(Composite, LabelsOfPixelsAreThoseOfSamples) {
  Program p;
  Value* logits = p.Random({2, 4, 3, 5}, 1, -3, 3);
  std::vector<double> classes;
  for (int i = 0; i < 30; ++i) classes.push_back(i * 7 % 4);
  Value* labels = p.In(MakeTensor({DType::kI32, {2, 3, 5}, {}}, classes));
  Value* rows = p.b.Reshape(p.b.Transpose(logits, {0, 2, 3, 1}), {30, 4});
  Value* flat = p.b.Reshape(labels, {30});
  const auto loss = [&](Value* of, Value* truth) {
    return p.Run(p.b.CrossEntropy(of, truth, {.label_smoothing = 0.1})).data;
  };
  EXPECT_EQ(loss(logits, labels), loss(rows, flat));
  EXPECT_EQ(p.Run(p.b.TopKCorrect(logits, labels, 2)).data,
            p.Run(p.b.TopKCorrect(rows, flat, 2)).data);
  Value* few = p.In(MakeTensor({DType::kI32, {2, 3}, {}}, {0, 1, 2, 3, 0, 1}));
  EXPECT_THROW(p.b.CrossEntropy(logits, few, {}), Error);
  EXPECT_THROW(p.b.TopKCorrect(logits, few, 1), Error);
}

TEST(Composite, CrossEntropyOfALabelOutOfRangeIsNan) {
  for (const double smoothing : {0.0, 0.1}) {
    Program p;
    Value* logits = p.Random({4, 3}, 1);
    Value* labels = p.In(MakeTensor({DType::kI32, {4}, {}}, {-1, 1, 3, 2}));
    Value* losses =
        p.b.CrossEntropy(logits, labels, {.label_smoothing = smoothing});
    const std::vector<Value*> wrt{logits};
    p.graph.AddOutput(losses, "losses");
    p.graph.AddOutput(
        passes::BuildGradients(p.graph, p.b.ReduceSum(losses, {0}), wrt)[0],
        "gradient");
    const auto results = Interpret(p.graph, p.inputs, EvalMode::kExact);
    for (int n = 0; n < 4; ++n) {
      const bool bad = n == 0 || n == 2;
      EXPECT_EQ(std::isnan(results[0].data[n]), bad) << n;
      for (int c = 0; c < 3; ++c) {
        EXPECT_EQ(std::isnan(results[1].data[n * 3 + c]), bad) << n;
      }
    }
  }
}

// A logit of -infinity masks a class: its probability is 0.
TEST(Composite, CrossEntropyTakesMaskedClasses) {
  Program p;
  Value* logits = p.In(MakeTensor(F64({1, 3}), {0, -INFINITY, 0}));
  Value* labels = p.In(MakeTensor({DType::kI32, {1}, {}}, {2}));
  EXPECT_THAT(p.Run(p.b.CrossEntropy(logits, labels, {})).data,
              ElementsAre(std::log(2)));
}

TEST(Composite, CrossEntropyRejectsWrongOperands) {
  Program p;
  Value* logits = p.Random({3, 4}, 1);
  Value* few = p.In(MakeTensor({DType::kI32, {2}, {}}, {0, 1}));
  EXPECT_THROW(p.b.CrossEntropy(logits, few, {}), Error);
  EXPECT_THROW(p.b.CrossEntropy(logits, logits, {}), Error);
  Value* labels = p.In(MakeTensor({DType::kI32, {3}, {}}, {0, 1, 2}));
  EXPECT_THROW(p.b.CrossEntropy(logits, labels, {.label_smoothing = 1}), Error);
}

// Class 1 has probability 0 and is ignored at first.
TEST(Composite, NegativeLogLikelihoodWeighsLabels) {
  Program p;
  std::vector<double> rows;
  for (const double first : {0, -1, -2, -3}) {
    rows.insert(rows.end(), {first, -INFINITY, -3});
  }
  Value* log_p = p.In(MakeTensor(F64({4, 3}), rows));
  Value* labels = p.In(MakeTensor({DType::kI64, {4}, {}}, {2, 0, 1, 3}));
  Value* class_weights = p.In(MakeTensor(F64({3}), {5, 6, 7}));
  const auto plain =
      p.b.NegativeLogLikelihood(log_p, labels, /*class_weights=*/nullptr, 1);
  EXPECT_THAT(p.Run(plain.losses).data, ElementsAre(3, 1, 0, IsNan()));
  EXPECT_THAT(p.Run(plain.weights).data, ElementsAre(1, 1, 0, IsNan()));
  const auto weighted =
      p.b.NegativeLogLikelihood(log_p, labels, class_weights, 1);
  EXPECT_THAT(p.Run(weighted.losses).data, ElementsAre(21, 5, 0, IsNan()));
  EXPECT_THAT(p.Run(weighted.weights).data, ElementsAre(7, 5, 0, IsNan()));
  const auto all = p.b.NegativeLogLikelihood(log_p, labels, class_weights, {});
  EXPECT_THAT(p.Run(all.losses).data, ElementsAre(21, 5, INFINITY, IsNan()));
  EXPECT_THROW(p.b.NegativeLogLikelihood(log_p, log_p, nullptr, {}), Error);
  EXPECT_THROW(p.b.NegativeLogLikelihood(log_p, labels, labels, {}), Error);
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
