#include "ir/builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "ir/op.h"
#include "ir/support/error.h"
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

TEST(Builder, SelectBroadcastsAllOperands) {
  Program p;
  Value* column = p.In(MakeTensor({DType::kBool, {2, 1}, {}}, {1, 0}));
  Value* row = p.In(MakeTensor(F64({3}), {1, 2, 3}));
  Value* scalar = p.In(MakeTensor(F64({}), {9}));
  const Tensor y = p.Run(p.b.Select(column, row, scalar));
  EXPECT_EQ(y.type.shape, (Shape{2, 3}));
  EXPECT_THAT(y.data, ElementsAre(1, 2, 3, 9, 9, 9));
  EXPECT_THAT(p.Run(p.b.Select(column, scalar, row)).data,
              ElementsAre(9, 9, 9, 1, 2, 3));
  Value* x = p.Random({2, 3}, 1);
  Value* mask = p.b.Compare("gt", x, 0.0);
  const size_t before = p.graph.nodes().size();
  p.b.Select(mask, x, x);
  EXPECT_EQ(p.graph.nodes().size(), before + 1);
}

// Returns the matrix of `t` for element `i` of the broadcast batch.
const double* MatrixOf(const Tensor& t, const Shape& batch, int64_t i) {
  const Shape& shape = t.type.shape;
  int64_t offset = 0;
  int64_t stride = shape[shape.size() - 2] * shape[shape.size() - 1];
  const double* data = t.data.data();
  for (size_t d = 0; d < batch.size(); ++d) {
    const int64_t extent = batch[batch.size() - 1 - d];
    const int64_t index = i % extent;
    i /= extent;
    if (d + 2 >= shape.size()) continue;
    const int64_t own = shape[shape.size() - 3 - d];
    if (own > 1) offset += index * stride;
    stride *= own;
  }
  return data + offset;
}

TEST(Builder, MatmulBroadcastsTheBatch) {
  struct Case {
    Shape a, b, batch;
    int64_t broadcasts;
  };
  for (const Case& c :
       {Case{{2, 1, 2, 3}, {4, 3, 5}, {2, 4}, 2},
        Case{{4, 2, 3}, {3, 5}, {4}, 0},
        Case{{4, 6, 2, 3}, {1, 3, 5}, {4, 6}, 0},
        Case{{2, 3}, {1, 1, 3, 5}, {1, 1}, 0}, Case{{2, 3}, {4, 3, 5}, {4}, 1},
        Case{{2, 4, 2, 3}, {2, 4, 3, 5}, {2, 4}, 0}}) {
    Program p;
    Value* a = p.Random(c.a, 1);
    Value* b = p.Random(c.b, 2);
    const Tensor y = p.Run(p.b.Matmul(a, b));
    Shape shape = c.batch;
    shape.insert(shape.end(), {2, 5});
    ASSERT_EQ(y.type.shape, shape);
    EXPECT_EQ(CountOps(p.graph, "broadcast"), c.broadcasts);
    for (size_t i = 0; i < y.data.size(); ++i) {
      const int64_t matrix = static_cast<int64_t>(i) / 10;
      const double* left = MatrixOf(p.inputs[0], c.batch, matrix);
      const double* right = MatrixOf(p.inputs[1], c.batch, matrix);
      double sum = 0;
      for (int64_t k = 0; k < 3; ++k) {
        sum += left[i / 5 % 2 * 3 + k] * right[k * 5 + i % 5];
      }
      EXPECT_NEAR(y.data[i], sum, 1e-14);
    }
  }
}

TEST(Builder, MatmulTransposesBeforeItBroadcasts) {
  Program p;
  Value* a = p.Random({4, 3, 2}, 1);
  Value* b = p.Random({5, 3}, 2);
  Value* plain =
      p.b.Matmul(p.b.Transpose(a, {0, 2, 1}), p.b.Transpose(b, {1, 0}));
  EXPECT_TRUE(
      AllClose(p.Run(p.b.Matmul(a, b, true, true)), p.Run(plain), 1e-14));
  Value* c = p.Random({4, 2, 3}, 3);
  Value* folded = p.b.Matmul(c, p.b.Transpose(b, {1, 0}));
  EXPECT_TRUE(
      AllClose(p.Run(p.b.Matmul(c, b, false, true)), p.Run(folded), 1e-14));
}

// Exporters repeat the weights of a linear layer for each element of a batch.
TEST(Builder, MatmulReadsARepeatedMatrixOnce) {
  Program p;
  Value* a = p.Random({4, 2, 3}, 1);
  Value* b = p.Random({3, 5}, 2);
  Value* y = p.b.Matmul(a, p.b.BroadcastTo(b, {4, 3, 5}));
  EXPECT_EQ(y->producer()->input(0)->type().shape, (Shape{8, 5}));
  EXPECT_TRUE(AllClose(p.Run(y), p.Run(p.b.Matmul(a, b)), 1e-14));
  // One row is repeated here.
  Value* row = p.Random({1, 5}, 3);
  Value* z = p.b.Matmul(a, p.b.BroadcastTo(row, {4, 3, 5}));
  EXPECT_EQ(z->type().shape, (Shape{4, 2, 5}));
}

TEST(Builder, MatmulTakesVectorsAsTorchDoes) {
  Program p;
  Value* v = p.In(MakeTensor(F64({2}), {1, 2}));
  Value* m = p.In(MakeTensor(F64({2, 2}), {1, 2, 3, 4}));
  const Tensor dot = p.Run(p.b.Matmul(v, v));
  EXPECT_EQ(dot.type.shape, Shape{});
  EXPECT_THAT(dot.data, ElementsAre(5));
  EXPECT_THAT(p.Run(p.b.Matmul(v, m)).data, ElementsAre(7, 10));
  EXPECT_THAT(p.Run(p.b.Matmul(m, v)).data, ElementsAre(5, 11));
  Value* batch = p.Random({3, 4, 2}, 1);
  EXPECT_EQ(p.b.Matmul(batch, v)->type().shape, (Shape{3, 4}));
  EXPECT_THROW(p.b.Matmul(v, m, true), Error);
}

// --- Dimensions --------------------------------------------------------------

TEST(Builder, NegativeDimsCountFromTheEnd) {
  Program p;
  Value* x = p.Random({2, 3, 4}, 1);
  EXPECT_EQ(p.b.ReduceSum(x, {-1})->type().shape, (Shape{2, 3}));
  EXPECT_EQ(p.b.ReduceMax(x, {-1, -3})->type().shape, Shape{3});
  EXPECT_EQ(p.b.ReduceMin(x, {2, 0})->type().shape, Shape{3});
  EXPECT_EQ(p.b.ReduceMean(x, {-2})->type().shape, (Shape{2, 4}));
  EXPECT_EQ(p.b.Transpose(x, {-1, 0, 1})->type().shape, (Shape{4, 2, 3}));
  EXPECT_EQ(p.b.Concat({x, x}, -2)->type().shape, (Shape{2, 6, 4}));
  Value* v = p.Random({3}, 2);
  EXPECT_EQ(p.b.Broadcast(v, {2, 3, 4}, {-2})->type().shape, (Shape{2, 3, 4}));
  EXPECT_EQ(p.b.BroadcastAlong(v, x->type(), -2)->type().shape,
            (Shape{2, 3, 4}));
  EXPECT_THAT(p.Run(p.b.Iota(DType::kI32, {2, 2}, -1)).data,
              ElementsAre(0, 1, 0, 1));
  EXPECT_TRUE(AllClose(p.Run(p.b.Softmax(x, -2)), p.Run(p.b.Softmax(x, 1)), 0));
  EXPECT_TRUE(
      AllClose(p.Run(p.b.LogSoftmax(x, -3)), p.Run(p.b.LogSoftmax(x, 0)), 0));
}

TEST(Builder, DimsOutOfRangeAndGivenTwiceAreNamed) {
  Program p;
  Value* x = p.Random({2, 3}, 1);
  EXPECT_THAT(ErrorOf([&] { p.b.ReduceSum(x, {2}); }),
              HasSubstr("dim 2: expected -2 to 1 for rank 2"));
  EXPECT_THAT(ErrorOf([&] { p.b.ReduceMean(x, {-3}); }),
              HasSubstr("dim -3: expected -2 to 1 for rank 2"));
  EXPECT_THAT(ErrorOf([&] {
                p.b.ReduceMax(x, {1, -1});
              }),
              HasSubstr("dim 1 is given twice"));
  EXPECT_THAT(ErrorOf([&] { p.b.Softmax(p.b.Scalar(DType::kF64, 1)); }),
              HasSubstr("a scalar has no dimension"));
  EXPECT_THAT(ErrorOf([&] { p.b.Concat({x, x}, 5); }), HasSubstr("dim 5"));
  EXPECT_THAT(ErrorOf([&] { p.b.GlobalAvgPool(x); }),
              HasSubstr("expected rank 4, got 2"));
}

TEST(Builder, ReductionsKeepTheirDimsIfAsked) {
  Program p;
  Value* x = p.In(MakeTensor(F64({2, 3}), {1, 2, 3, 4, 5, 6}));
  const Tensor mean = p.Run(p.b.ReduceMean(x, {-1}, true));
  EXPECT_EQ(mean.type.shape, (Shape{2, 1}));
  EXPECT_THAT(mean.data, ElementsAre(2, 5));
  const Tensor sum = p.Run(p.b.ReduceSum(x, {0}, /*keepdim=*/true));
  EXPECT_EQ(sum.type.shape, (Shape{1, 3}));
  EXPECT_THAT(sum.data, ElementsAre(5, 7, 9));
  EXPECT_THAT(p.Run(p.b.ReduceMax(x, {0, 1}, true)).type.shape,
              ElementsAre(1, 1));
  EXPECT_THAT(p.Run(p.b.ReduceMin(x, {1}, true)).data, ElementsAre(1, 4));
}

// --- Scalars, integers -------------------------------------------------------

TEST(Builder, ScalarOperandsOfMinimumMaximumAndPow) {
  Program p;
  Value* x = p.In(MakeTensor(F64({3}), {-2, 1, 5}));
  EXPECT_THAT(p.Run(p.b.Maximum(x, 1.5)).data, ElementsAre(1.5, 1.5, 5));
  EXPECT_THAT(p.Run(p.b.Minimum(x, 1.5)).data, ElementsAre(-2, 1, 1.5));
  EXPECT_THAT(p.Run(p.b.Pow(x, 3.0)).data, ElementsAre(-8, 1, 125));
}

TEST(Builder, IntegersHaveNoMeanAndNoFractionalScalar) {
  Program p;
  Value* i = p.In(MakeTensor({DType::kI32, {4}, {}}, {1, 2, 3, 4}));
  EXPECT_THAT(ErrorOf([&] { p.b.ReduceMean(i, {0}); }),
              AllOf(HasSubstr("mean(i32[4]) at "),
                    HasSubstr("expected a floating dtype, got i32")));
  EXPECT_THAT(ErrorOf([&] { p.b.Times(i, 0.25); }), HasSubstr("scalar 0.25"));
  EXPECT_THAT(p.Run(p.b.Times(i, 2.0)).data, ElementsAre(2, 4, 6, 8));
  EXPECT_THAT(p.Run(p.b.ReduceMean(p.b.Cast(i, DType::kF64), {0})).data,
              ElementsAre(2.5));
}

// --- Null values -------------------------------------------------------------

TEST(Builder, NullValuesAreNamed) {
  Program p;
  Builder& b = p.b;
  Value* x = p.Random({2, 3}, 1);
  Value* const null = nullptr;
  EXPECT_THAT(ErrorOf([&] { b.Relu(null); }),
              HasSubstr("relu at tests/ir/builder_test.cc:"));
  EXPECT_THAT(ErrorOf([&] { b.Plus(x, null); }),
              AllOf(HasSubstr("add(f64[2,3], null) at "),
                    HasSubstr("operand 1: expected a value, got null")));
  const std::vector<std::function<void()>> calls = {
      [&] { b.Plus(null, 1.0); },
      [&] { b.Cast(null, DType::kF32); },
      [&] { b.Select(null, x, x); },
      [&] { b.Reshape(null, {6}); },
      [&] { b.Broadcast(null, {6}, {}); },
      [&] { b.BroadcastTo(null, {6}); },
      [&] { b.BroadcastAlong(null, x->type(), 0); },
      [&] { b.Transpose(null, {0}); },
      [&] { b.Slice(null, {0}, {1}); },
      [&] {
        b.Concat({x, null}, 0);
      },
      [&] { b.Copy(null, {}); },
      [&] { b.ReduceSum(null, {0}); },
      [&] { b.ReduceMean(null, {0}); },
      [&] { b.Matmul(x, null); },
      [&] { b.Conv2d(null, x, nullptr, {}); },
      [&] { b.MaxPool2d(null, {}); },
      [&] { b.Linear(x, null, nullptr); },
      [&] { b.Sigmoid(null); },
      [&] { b.Silu(null); },
      [&] { b.Softplus(null); },
      [&] { b.Relu6(null); },
      [&] { b.Clamp(null, 0, 1); },
      [&] { b.Gelu(null); },
      [&] { b.GeluTanh(null); },
      [&] { b.Softmax(null); },
      [&] { b.LogSoftmax(null); },
      [&] { b.LayerNorm(x, null, null, 1e-5); },
      [&] { b.LayerNorm(null, x, x, 1e-5, 1); },
      [&] { b.BatchNormTrain(null, x, x, 1e-5); },
      [&] { b.BatchNormInference(x, x, x, x, null, 1e-5); },
      [&] { b.Dropout(x, 0.5, null, null); },
      [&] { b.GlobalAvgPool(null); },
      [&] { b.AdaptiveAvgPool2d(null, 1, 1); },
      [&] { b.CrossEntropy(x, null, {}); },
      [&] { b.TopKCorrect(null, x, 1); },
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_THAT(ErrorOf(calls[i]), HasSubstr("expected a value, got null"))
        << "call " << i;
  }
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
    if (i == 2) {  // erasing a node must not change the other's site
      Node* dead = p.b.Random(key, step, {2})->producer();
      p.graph.Erase(dead);
    }
  }
}

}  // namespace
}  // namespace fusor::ir
