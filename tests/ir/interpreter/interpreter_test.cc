#include "ir/interpreter/interpreter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ir/builder.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/philox.h"
#include "tests/testing/numeric.h"

namespace fusor::ir {
namespace {

using test::AllClose;
using test::MakeTensor;
using test::RandomTensor;
using ::testing::ElementsAre;

// A graph under construction, and the tensors of its inputs.
struct Fixture {
  Graph graph;
  Builder b{graph};
  std::vector<Tensor> inputs;

  Value* In(Tensor tensor) {
    inputs.push_back(std::move(tensor));
    return graph.AddInput(inputs.back().type, InputRole::kData, "x");
  }
  Value* In(Shape shape, std::vector<double> values,
            DType dtype = DType::kF64) {
    return In(MakeTensor({dtype, std::move(shape), {}}, std::move(values)));
  }
  Value* Random(Shape shape, uint64_t seed, DType dtype = DType::kF64) {
    return In(RandomTensor({dtype, std::move(shape), {}}, seed));
  }
  Tensor Run(Value* value, EvalMode mode = EvalMode::kExact) {
    graph.AddOutput(value, "y");
    return Interpret(graph, inputs, mode).back();
  }
};

// --- Modes -------------------------------------------------------------------

TEST(Interpreter, TypedModeRoundsEachResultToItsDtype) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    Fixture f;
    Value* x = f.In({1}, {1}, dtype);
    Value* y = f.b.Divide(x, 3.0);
    const Tensor result = f.Run(f.b.Times(y, 3.0), EvalMode::kTyped);
    const double third = RoundTo(dtype, 1.0 / 3);
    EXPECT_EQ(result.data[0], RoundTo(dtype, third * 3)) << DTypeName(dtype);
  }
}

TEST(Interpreter, ExactModeRoundsOnlyIntegersAndBool) {
  Fixture f;
  Value* x = f.In({2}, {0.1, 300.7}, DType::kF16);
  f.graph.AddOutput(f.b.Cast(x, DType::kF32), "float");
  f.graph.AddOutput(f.b.Cast(x, DType::kI32), "int");
  f.graph.AddOutput(f.b.Cast(x, DType::kU8), "byte");
  f.graph.AddOutput(f.b.Cast(x, DType::kBool), "bool");
  const auto out = Interpret(f.graph, f.inputs, EvalMode::kExact);
  EXPECT_THAT(out[0].data, ElementsAre(0.1, 300.7));
  EXPECT_THAT(out[1].data, ElementsAre(0, 300));
  EXPECT_THAT(out[2].data, ElementsAre(0, 44));
  EXPECT_THAT(out[3].data, ElementsAre(1, 1));
}

TEST(Interpreter, ReductionsRoundOnceAtTheEnd) {
  Fixture f;
  // A running sum in f16 would stop at 2048.
  Value* ones = f.In({4096}, std::vector<double>(4096, 1), DType::kF16);
  EXPECT_THAT(f.Run(f.b.ReduceSum(ones, {0}), EvalMode::kTyped).data,
              ElementsAre(4096));
}

// --- Elements ----------------------------------------------------------------

TEST(Interpreter, NanPropagatesThroughMaximumMinimumAndRelu) {
  Fixture f;
  Value* x = f.In({3}, {NAN, 1, -2});
  Value* y = f.In({3}, {1, NAN, -3});
  f.graph.AddOutput(f.b.Maximum(x, y), "max");
  f.graph.AddOutput(f.b.Minimum(x, y), "min");
  f.graph.AddOutput(f.b.Relu(x), "relu");
  const auto out = Interpret(f.graph, f.inputs, EvalMode::kExact);
  EXPECT_TRUE(std::isnan(out[0].data[0]) && std::isnan(out[0].data[1]));
  EXPECT_EQ(out[0].data[2], -2);
  EXPECT_TRUE(std::isnan(out[1].data[0]) && std::isnan(out[1].data[1]));
  EXPECT_EQ(out[1].data[2], -3);
  EXPECT_TRUE(std::isnan(out[2].data[0]));
  EXPECT_EQ(out[2].data[2], 0);
}

TEST(Interpreter, ComparisonsWithNanAreFalseExceptNe) {
  for (const char* direction : {"eq", "ne", "lt", "le", "gt", "ge"}) {
    Fixture f;
    Value* x = f.In({2}, {NAN, NAN});
    Value* y = f.In({2}, {1, NAN});
    const double expected = std::string(direction) == "ne" ? 1 : 0;
    EXPECT_THAT(f.Run(f.b.Compare(direction, x, y)).data,
                ElementsAre(expected, expected))
        << direction;
  }
}

TEST(Interpreter, RandomIsTheDocumentedPhiloxStream) {
  Fixture f;
  Value* key = f.In({}, {123456789}, DType::kI64);
  Value* step = f.In({}, {7}, DType::kI32);
  Value* first = f.b.Random(key, step, {5});
  Value* second = f.b.Random(key, step, {2, 2});
  f.graph.AddOutput(first, "first");
  f.graph.AddOutput(second, "second");
  const auto out = Interpret(f.graph, f.inputs, EvalMode::kTyped);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(out[0].data[i], RandomUniform(123456789, 7, 0, 0, i));
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(out[1].data[i], RandomUniform(123456789, 7, 1, 0, i));
  }
}

TEST(Interpreter, IotaCountsAlongItsDimension) {
  Fixture f;
  f.graph.AddOutput(f.b.Iota(DType::kI32, {2, 3}, 0), "rows");
  f.graph.AddOutput(f.b.Iota(DType::kI32, {2, 3}, 1), "columns");
  const auto out = Interpret(f.graph, f.inputs, EvalMode::kTyped);
  EXPECT_THAT(out[0].data, ElementsAre(0, 0, 0, 1, 1, 1));
  EXPECT_THAT(out[1].data, ElementsAre(0, 1, 2, 0, 1, 2));
}

// --- Shape -------------------------------------------------------------------

TEST(Interpreter, BroadcastPlacesOperandDimensions) {
  Fixture f;
  Value* x = f.In({2}, {1, 2});
  EXPECT_THAT(f.Run(f.b.Broadcast(x, {2, 3}, {0})).data,
              ElementsAre(1, 1, 1, 2, 2, 2));
  EXPECT_THAT(f.Run(f.b.Broadcast(x, {3, 2}, {1})).data,
              ElementsAre(1, 2, 1, 2, 1, 2));
  EXPECT_THAT(f.Run(f.b.Broadcast(x, {2, 2, 2}, {1})).data,
              ElementsAre(1, 1, 2, 2, 1, 1, 2, 2));
}

TEST(Interpreter, FlattenFollowsALayoutWhateverTheOperands) {
  Fixture f;
  Value* x = f.In({2, 4}, {0, 1, 2, 3, 4, 5, 6, 7});
  // Blocks of two columns. Within a block, elements are stored row by row.
  Value* flat =
      f.b.Add("flatten", {x}, {{"order", std::string("Ba2b")}})->output();
  Value* columns = f.b.Add("flatten", {f.b.Copy(x, ir::ParseLayout("ba"))},
                           {{"order", std::string("ba")}})
                       ->output();
  Value* back =
      f.b.Add("unflatten", {columns},
              {{"shape", ir::Shape{2, 4}}, {"order", std::string("ba")}})
          ->output();
  EXPECT_EQ(back->type().layout, ir::ParseLayout("ba"));
  EXPECT_THAT(f.Run(flat).data, ElementsAre(0, 1, 4, 5, 2, 3, 6, 7));
  EXPECT_THAT(f.Run(columns).data, ElementsAre(0, 4, 1, 5, 2, 6, 3, 7));
  EXPECT_THAT(f.Run(back).data, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(Interpreter, TransposePermutesDimensions) {
  Fixture f;
  Value* x = f.In({2, 1, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(f.Run(f.b.Transpose(x, {2, 0, 1})).data,
              ElementsAre(1, 4, 2, 5, 3, 6));
}

TEST(Interpreter, SliceTakesStridedElements) {
  Fixture f;
  Value* x = f.In({2, 5}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_THAT(f.Run(f.b.Slice(x, {1, 1}, {2, 5}, {1, 2})).data,
              ElementsAre(6, 8));
  EXPECT_THAT(f.Run(f.b.Slice(x, {0, 3}, {2, 5})).data,
              ElementsAre(3, 4, 8, 9));
}

TEST(Interpreter, PadAddsAroundAndBetween) {
  Fixture f;
  Value* x = f.In({1, 2}, {1, 2});
  const Tensor y = f.Run(f.b.Pad(x, {1, 0}, {0, 2}, {0, 1}, -1));
  EXPECT_EQ(y.type.shape, (Shape{2, 5}));
  EXPECT_THAT(y.data, ElementsAre(-1, -1, -1, -1, -1, 1, -1, 2, -1, -1));
}

TEST(Interpreter, ConcatJoinsAlongItsDimension) {
  Fixture f;
  Value* x = f.In({2, 1}, {1, 2});
  Value* y = f.In({2, 2}, {3, 4, 5, 6});
  EXPECT_THAT(f.Run(f.b.Concat({x, y}, 1)).data, ElementsAre(1, 3, 4, 2, 5, 6));
  EXPECT_THAT(f.Run(f.b.Concat({y, y}, 0)).data,
              ElementsAre(3, 4, 5, 6, 3, 4, 5, 6));
}

TEST(Interpreter, LayoutsDoNotChangeValues) {
  Fixture f;
  Value* x = f.Random({1, 16, 2, 2}, 1, DType::kF32);
  Value* blocked = f.b.Copy(x, ParseLayout("aBcd16b"));
  const Tensor y = f.Run(f.b.Relu(blocked));
  EXPECT_EQ(y.type.layout, ParseLayout("aBcd16b"));
  for (size_t i = 0; i < y.data.size(); ++i) {
    EXPECT_EQ(y.data[i], std::max(f.inputs[0].data[i], 0.0));
  }
}

// --- Reductions, matmul ------------------------------------------------------

TEST(Interpreter, ReduceFoldsAnySetOfDimensions) {
  Fixture f;
  Value* x = f.In({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_THAT(f.Run(f.b.ReduceSum(x, {0, 2})).data, ElementsAre(14, 22));
  EXPECT_THAT(f.Run(f.b.ReduceMax(x, {1})).data, ElementsAre(3, 4, 7, 8));
  EXPECT_THAT(f.Run(f.b.ReduceMin(x, {0, 1, 2})).data, ElementsAre(1));
  Value* product = f.b.Add("reduce", {x},
                           {{"kind", std::string("prod")},
                            {"dims", std::vector<int64_t>{2}}})
                       ->output();
  EXPECT_THAT(f.Run(product).data, ElementsAre(2, 12, 30, 56));
}

TEST(Interpreter, MatmulHandlesTransposesBatchesAndOddSizes) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      Fixture f;
      constexpr int64_t kM = 5, kN = 523, kK = 301, kBatch = 2;
      Value* a =
          f.Random(ta ? Shape{kBatch, kK, kM} : Shape{kBatch, kM, kK}, 1);
      Value* b =
          f.Random(tb ? Shape{kBatch, kN, kK} : Shape{kBatch, kK, kN}, 2);
      const Tensor y = f.Run(f.b.Matmul(a, b, ta, tb));
      Tensor expected{y.type, {}};
      for (int64_t batch = 0; batch < kBatch; ++batch) {
        const double* pa = &f.inputs[0].data[batch * kM * kK];
        const double* pb = &f.inputs[1].data[batch * kK * kN];
        for (int64_t i = 0; i < kM; ++i) {
          for (int64_t j = 0; j < kN; ++j) {
            double sum = 0;
            for (int64_t k = 0; k < kK; ++k) {
              sum += pa[ta ? k * kM + i : i * kK + k] *
                     pb[tb ? j * kK + k : k * kN + j];
            }
            expected.data.push_back(sum);
          }
        }
      }
      EXPECT_TRUE(AllClose(y, expected, 1e-12, 1e-13));
    }
  }
}

// --- Convolution -------------------------------------------------------------

struct ConvCase {
  Shape x, w;
  Conv2dOptions options;
};

const ConvCase kConvCases[] = {
    {{2, 3, 5, 6}, {4, 3, 3, 3}, {.pad_h = 1, .pad_w = 1}},
    {{1, 4, 7, 7}, {6, 4, 1, 1}, {.stride_h = 2, .stride_w = 2}},
    {{2, 4, 9, 8},
     {6, 2, 3, 2},
     {.stride_h = 2, .stride_w = 3, .pad_h = 2, .pad_w = 1, .groups = 2}},
    {{1, 3, 9, 9},
     {3, 1, 3, 3},
     {.pad_h = 2, .pad_w = 2, .dilation_h = 2, .dilation_w = 3, .groups = 3}},
    {{2, 3, 17, 19},
     {9, 3, 7, 7},
     {.stride_h = 2, .stride_w = 2, .pad_h = 3, .pad_w = 3}},
};

// Calls visit(x index, w index, y index) for every product of a convolution, by
// its definition in seven nested loops.
template <typename Visit>
void ForEachProduct(const ConvCase& c, const Shape& y, Visit visit) {
  const Conv2dOptions& o = c.options;
  const int64_t group_out = c.w[0] / o.groups;
  int64_t to = 0;
  for (int64_t n = 0; n < y[0]; ++n) {
    for (int64_t k = 0; k < y[1]; ++k) {
      for (int64_t i = 0; i < y[2]; ++i) {
        for (int64_t j = 0; j < y[3]; ++j, ++to) {
          for (int64_t w = 0; w < c.w[1] * c.w[2] * c.w[3]; ++w) {
            const int64_t channel =
                k / group_out * c.w[1] + w / (c.w[2] * c.w[3]);
            const int64_t row =
                i * o.stride_h - o.pad_h + w / c.w[3] % c.w[2] * o.dilation_h;
            const int64_t column =
                j * o.stride_w - o.pad_w + w % c.w[3] * o.dilation_w;
            if (row < 0 || row >= c.x[2] || column < 0 || column >= c.x[3]) {
              continue;
            }
            visit(((n * c.x[1] + channel) * c.x[2] + row) * c.x[3] + column,
                  k * c.w[1] * c.w[2] * c.w[3] + w, to);
          }
        }
      }
    }
  }
}

class ConvolutionTest : public ::testing::TestWithParam<ConvCase> {};

TEST_P(ConvolutionTest, ForwardEqualsItsDefinition) {
  const ConvCase& c = GetParam();
  Fixture f;
  Value* x = f.Random(c.x, 1);
  Value* w = f.Random(c.w, 2);
  Value* bias = f.Random({c.w[0]}, 3);
  const Tensor y = f.Run(f.b.Conv2d(x, w, bias, c.options));
  Tensor expected{y.type, std::vector<double>(y.data.size())};
  ForEachProduct(c, y.type.shape, [&](int64_t i, int64_t j, int64_t k) {
    expected.data[k] += f.inputs[0].data[i] * f.inputs[1].data[j];
  });
  const int64_t plane = y.type.shape[2] * y.type.shape[3];
  for (size_t i = 0; i < y.data.size(); ++i) {
    expected.data[i] += f.inputs[2].data[i / plane % c.w[0]];
  }
  EXPECT_TRUE(AllClose(y, expected, 1e-12, 1e-13));
}

TEST_P(ConvolutionTest, GradientsEqualTheirDefinitions) {
  const ConvCase& c = GetParam();
  Fixture f;
  Value* x = f.Random(c.x, 1);
  Value* w = f.Random(c.w, 2);
  const Node* conv = f.b.Conv2d(x, w, nullptr, c.options)->producer();
  const Shape y_shape = conv->output()->type().shape;
  Value* dy = f.Random(y_shape, 4);
  Attrs attrs = conv->attrs();
  attrs.Set("input_shape", c.x);
  const Tensor dx =
      f.Run(f.b.Add("conv2d_grad_input", {dy, w}, attrs)->output());
  attrs.Erase("input_shape");
  attrs.Set("weight_shape", c.w);
  const Tensor dw =
      f.Run(f.b.Add("conv2d_grad_weight", {x, dy}, attrs)->output());
  Tensor expected_dx{dx.type, std::vector<double>(dx.data.size())};
  Tensor expected_dw{dw.type, std::vector<double>(dw.data.size())};
  ForEachProduct(c, y_shape, [&](int64_t i, int64_t j, int64_t k) {
    expected_dx.data[i] += f.inputs[1].data[j] * f.inputs[2].data[k];
    expected_dw.data[j] += f.inputs[0].data[i] * f.inputs[2].data[k];
  });
  EXPECT_TRUE(AllClose(dx, expected_dx, 1e-12, 1e-13));
  EXPECT_TRUE(AllClose(dw, expected_dw, 1e-12, 1e-12));
}

INSTANTIATE_TEST_SUITE_P(Geometries, ConvolutionTest,
                         ::testing::ValuesIn(kConvCases));

// --- Pooling -----------------------------------------------------------------

TEST(Interpreter, PaddingDoesNotMeetTheGradient) {
  Fixture f;
  Value* x = f.In({1, 1, 1, 2}, {2, 3});
  Value* dy = f.In({1, 1, 1, 2}, {5, std::nan("")});
  Attrs attrs;
  attrs.Set("pad", std::vector<int64_t>{0, 1});
  attrs.Set("weight_shape", Shape{1, 1, 1, 3});
  // The last tap only reads padding where the gradient is NaN.
  const Tensor dw =
      f.Run(f.b.Add("conv2d_grad_weight", {x, dy}, attrs)->output());
  EXPECT_TRUE(std::isnan(dw.data[0]));
  EXPECT_TRUE(std::isnan(dw.data[1]));
  EXPECT_EQ(dw.data[2], 5 * 3);
}

TEST(Interpreter, MaxPoolIndexIsTheFirstMaximumInThePaddedWindow) {
  Fixture f;
  Value* x = f.In({1, 1, 3, 3}, {5, 5, 1, 5, 5, 1, 0, 2, 2});
  const Pool2dOptions options{.window_h = 3,
                              .window_w = 3,
                              .stride_h = 2,
                              .stride_w = 2,
                              .pad_h = 1,
                              .pad_w = 1};
  const Node* pool = f.b.MaxPool2d(x, options)->producer();
  EXPECT_THAT(f.Run(pool->output(0)).data, ElementsAre(5, 5, 5, 5));
  // Window origins are (-1,-1), (-1,1), (1,-1), (1,1).
  EXPECT_THAT(f.Run(pool->output(1)).data, ElementsAre(4, 3, 1, 0));
}

TEST(Interpreter, MaxPoolTakesNanAsTheMaximum) {
  Fixture f;
  const double inf = INFINITY;
  Value* x = f.In({1, 1, 2, 4}, {1, NAN, -inf, -inf, NAN, 2, -inf, -inf});
  const Node* pool = f.b.MaxPool2d(x, {})->producer();
  const Tensor y = f.Run(pool->output(0));
  EXPECT_TRUE(std::isnan(y.data[0]));
  EXPECT_EQ(y.data[1], -inf);
  EXPECT_THAT(f.Run(pool->output(1)).data, ElementsAre(1, 0));
}

TEST(Interpreter, MaxPoolGradientAddsUpOverlaps) {
  Fixture f;
  Value* x = f.In({1, 1, 1, 3}, {1, 3, 2});
  const Pool2dOptions options{
      .window_h = 1, .window_w = 2, .stride_h = 1, .stride_w = 1};
  const Node* pool = f.b.MaxPool2d(x, options)->producer();
  Value* dy = f.In({1, 1, 1, 2}, {10, 20});
  Attrs attrs = pool->attrs();
  attrs.Set("input_shape", x->type().shape);
  EXPECT_THAT(
      f.Run(f.b.Add("max_pool_grad", {dy, pool->output(1)}, attrs)->output())
          .data,
      ElementsAre(0, 30, 0));
}

TEST(Interpreter, MaxPoolGatherReadsWhereTheMaximaAre) {
  Fixture f;
  Value* x = f.In({1, 1, 2, 4}, {1, 2, 7, 3, 4, 3, 5, 6});
  Value* other = f.In({1, 1, 2, 4}, {10, 11, 12, 13, 14, 15, 16, 17});
  const Node* pool = f.b.MaxPool2d(x, {})->producer();
  EXPECT_THAT(
      f.Run(f.b.Add("max_pool_gather", {other, pool->output(1)}, pool->attrs())
                ->output())
          .data,
      ElementsAre(14, 12));
}

TEST(Interpreter, AvgPoolDividesByTheWindowOrByWhatIsInside) {
  for (const bool include_pad : {true, false}) {
    Fixture f;
    Value* x = f.In({1, 1, 2, 2}, {4, 8, 12, 16});
    const Pool2dOptions options{.stride_h = 2,
                                .stride_w = 2,
                                .pad_h = 1,
                                .pad_w = 1,
                                .count_include_pad = include_pad};
    const Node* pool = f.b.AvgPool2d(x, options)->producer();
    const double scale = include_pad ? 4 : 1;
    EXPECT_THAT(f.Run(pool->output()).data,
                ElementsAre(4 / scale, 8 / scale, 12 / scale, 16 / scale));
    Value* dy = f.In({1, 1, 2, 2}, {1, 2, 3, 4});
    Attrs attrs = pool->attrs();
    attrs.Set("input_shape", x->type().shape);
    EXPECT_THAT(f.Run(f.b.Add("avg_pool_grad", {dy}, attrs)->output()).data,
                ElementsAre(1 / scale, 2 / scale, 3 / scale, 4 / scale));
  }
}

// --- Batch normalisation -----------------------------------------------------

TEST(Interpreter, BatchNormNormalisesEachChannel) {
  Fixture f;
  Value* x = f.In({2, 2, 1, 2}, {1, 2, 10, 20, 3, 4, 30, 40});
  Value* gamma = f.In({2}, {1, 2});
  Value* beta = f.In({2}, {0, -1});
  const BatchNormResult bn = f.b.BatchNormTrain(x, gamma, beta, 0);
  EXPECT_THAT(f.Run(bn.mean).data, ElementsAre(2.5, 25));
  EXPECT_THAT(f.Run(bn.variance).data, ElementsAre(1.25, 125));
  const Tensor y = f.Run(bn.y);
  const double s = 1 / std::sqrt(1.25);
  const Tensor expected =
      MakeTensor(y.type, {-1.5 * s, -0.5 * s, -3 * s - 1, -1 * s - 1, 0.5 * s,
                          1.5 * s, 1 * s - 1, 3 * s - 1});
  EXPECT_TRUE(AllClose(y, expected, 1e-14));
}

TEST(Interpreter, BatchNormVarianceSurvivesALargeMean) {
  Fixture f;
  Tensor x = RandomTensor({DType::kF32, {64, 1, 8, 8}, {}}, 5);
  double sum = 0, squares = 0;
  for (double& v : x.data) {
    v = RoundTo(DType::kF32, v + 1000);
    sum += v - 1000;
    squares += (v - 1000) * (v - 1000);
  }
  const double count = static_cast<double>(x.data.size());
  const double variance = squares / count - sum / count * (sum / count);
  Value* gamma = f.In({1}, {1}, DType::kF32);
  Value* beta = f.In({1}, {0}, DType::kF32);
  Value* in = f.In(std::move(x));
  const BatchNormResult bn = f.b.BatchNormTrain(in, gamma, beta, 1e-5);
  EXPECT_NEAR(f.Run(bn.variance, EvalMode::kTyped).data[0], variance,
              variance * 1e-6);
}

TEST(Interpreter, BatchNormMaskSaysWhereTheResultIsPositive) {
  for (const char* residual : {"add", "norm"}) {
    Fixture f;
    Value* x = f.Random({2, 3, 2, 2}, 1, DType::kF32);
    Value* r = f.Random({2, 3, 2, 2}, 2, DType::kF32);
    Value* gamma = f.Random({3}, 3, DType::kF32);
    Value* beta = f.Random({3}, 4, DType::kF32);
    std::vector<Value*> operands{x, gamma, beta, r};
    if (std::string(residual) == "norm") {
      operands.insert(operands.end(), {beta, gamma});
    }
    const Node* bn =
        f.b.Add("batch_norm_train", operands,
                {{"relu", true}, {"residual", std::string(residual)}});
    const Tensor y = f.Run(bn->output(0), EvalMode::kTyped);
    const Tensor mask =
        f.Run(bn->output(bn->num_outputs() - 1), EvalMode::kTyped);
    for (size_t i = 0; i < y.data.size(); ++i) {
      EXPECT_GE(y.data[i], 0);
      EXPECT_EQ(mask.data[i], y.data[i] > 0);
    }
  }
}

// --- Graphs ------------------------------------------------------------------

TEST(Interpreter, AFusionComputesItsBodyOpByOp) {
  auto body = std::make_unique<Graph>("body");
  Builder inner(*body);
  const TensorType type{DType::kF16, {3}, {}};
  Value* a = body->AddInput(type, InputRole::kData, "a");
  Value* c = body->AddInput(type, InputRole::kData, "c");
  Value* product = inner.Times(a, c);
  body->AddOutput(inner.Plus(product, c), "sum");
  body->AddOutput(product, "product");
  Fixture f;
  Value* x = f.In({3}, {0.1, 2, 3}, DType::kF16);
  Value* y = f.In({3}, {0.3, 5, 7}, DType::kF16);
  for (Tensor& t : f.inputs) {
    for (double& v : t.data) v = RoundTo(DType::kF16, v);
  }
  const Node* fusion =
      f.graph.AddNode("fusion", {x, y}, {}, "", nullptr, std::move(body));
  const double p =
      RoundTo(DType::kF16, f.inputs[0].data[0] * f.inputs[1].data[0]);
  EXPECT_THAT(f.Run(fusion->output(1), EvalMode::kTyped).data,
              ElementsAre(p, 10, 21));
  EXPECT_THAT(
      f.Run(fusion->output(0), EvalMode::kTyped).data,
      ElementsAre(RoundTo(DType::kF16, p + f.inputs[1].data[0]), 15, 28));
}

TEST(Interpreter, VisitsEveryValueInOrder) {
  Fixture f;
  Value* x = f.In({1}, {2});
  Value* y = f.b.Neg(x);
  Value* unused = f.b.Abs(y);
  Value* z = f.b.Neg(y);
  f.graph.AddOutput(z, "z");
  std::vector<const Value*> seen;
  Interpret(f.graph, f.inputs, EvalMode::kExact,
            [&](const Value& value, const Tensor& tensor) {
              EXPECT_EQ(tensor.type, value.type());
              seen.push_back(&value);
            });
  EXPECT_THAT(seen, ElementsAre(x, y, unused, z));
}

TEST(Interpreter, AnOutputMayBeAnInputOrAppearTwice) {
  Fixture f;
  Value* x = f.In({1}, {2});
  Value* y = f.b.Neg(x);
  f.graph.AddOutput(x, "same");
  f.graph.AddOutput(y, "first");
  f.graph.AddOutput(y, "second");
  const auto out = Interpret(f.graph, f.inputs, EvalMode::kExact);
  EXPECT_EQ(out[0].data[0], 2);
  EXPECT_EQ(out[1].data[0], -2);
  EXPECT_EQ(out[2].data[0], -2);
}

TEST(Interpreter, RejectsInputsThatDoNotFit) {
  Fixture f;
  Value* x = f.In({2}, {1, 2});
  f.graph.AddOutput(f.b.Neg(x), "y");
  EXPECT_THROW(Interpret(f.graph, {}, EvalMode::kExact), Error);
  const Tensor wrong = MakeTensor({DType::kF32, {2}, {}}, {1, 2});
  EXPECT_THROW(Interpret(f.graph, std::span(&wrong, 1), EvalMode::kExact),
               Error);
  const Tensor hollow{{DType::kF64, {2}, {}}, {1}};
  EXPECT_THROW(Interpret(f.graph, std::span(&hollow, 1), EvalMode::kExact),
               Error);
}

TEST(Interpreter, InterpretNodeRunsOneNode) {
  Fixture f;
  Value* x = f.In({2}, {1, 4});
  const Node* node = f.b.Sqrt(x)->producer();
  const Tensor* operand = f.inputs.data();
  const auto out =
      InterpretNode(*node, std::span(&operand, 1), EvalMode::kTyped);
  EXPECT_THAT(out[0].data, ElementsAre(1, 2));
}

}  // namespace
}  // namespace fusor::ir
