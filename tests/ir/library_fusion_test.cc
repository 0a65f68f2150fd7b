// Library fusions. Compares their bodies with separate ops, and checks what can
// be queried from them.

#include "ir/library_fusion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "ir/interpreter/interpreter.h"
#include "ir/support/error.h"
#include "ir/target/conv_problem.h"
#include "ir/target/cost.h"
#include "ir/verifier.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/numeric.h"

namespace fusor::ir {
namespace {

using test::AllClose;

constexpr double kEpsilon = 1e-3;

const Attrs kPad = {{"pad", std::vector<int64_t>{1, 1}}};

Attrs GradInputAttrs() {
  Attrs attrs = kPad;
  attrs.Set("input_shape", std::vector<int64_t>{2, 3, 5, 4});
  return attrs;
}

// A graph under construction, with random inputs of one dtype.
class LibraryFusionTest : public testing::Test {
 protected:
  explicit LibraryFusionTest(DType dtype = DType::kF64) : dtype_(dtype) {}

  Value* In(Shape shape, double low = -1) {
    const TensorType type{dtype_, std::move(shape), {}};
    inputs_.push_back(
        test::RandomTensor(type, inputs_.size() + 1, low, low + 2));
    return graph_.AddInput(type, InputRole::kData, "x");
  }
  Value* Vector(double low = -1) { return In({3}, low); }
  Value* Image() { return In({2, 3, 5, 4}); }

  const Node* Conv(Value* x, Value* w) {
    return b_.Add("conv2d", {x, w}, kPad);
  }
  const Node* GradInput(Value* dy, Value* w) {
    return b_.Add("conv2d_grad_input", {dy, w}, GradInputAttrs());
  }
  Node* Fuse(const Node* conv, const std::function<void(LibraryFusion&)>& add) {
    LibraryFusion fusion(*conv);
    add(fusion);
    return std::move(fusion).Build(graph_, nullptr);
  }

  void ExpectEqual(Value* actual, Value* expected, double tolerance = 1e-6) {
    tolerances_.push_back(tolerance);
    const std::string pair = std::to_string(tolerances_.size());
    graph_.AddOutput(actual, "actual" + pair);
    graph_.AddOutput(expected, "expected" + pair);
  }
  void Check(EvalMode mode = EvalMode::kExact) {
    Verify(graph_);
    const std::vector<Tensor> outputs = Interpret(graph_, inputs_, mode);
    for (size_t i = 0; i < tolerances_.size(); ++i) {
      Tensor expected = outputs[2 * i + 1];
      expected.type.dtype = outputs[2 * i].type.dtype;
      EXPECT_TRUE(
          AllClose(outputs[2 * i], expected, tolerances_[i], tolerances_[i]))
          << i;
    }
  }

  Value* Spread(Value* v, Value* like) {
    return b_.BroadcastAlong(v, like->type(), 1);
  }
  Value* Scaled(Value* x, Value* scale, Value* shift) {
    return b_.Plus(b_.Times(x, Spread(scale, x)), Spread(shift, x));
  }

  const DType dtype_;
  Graph graph_;
  Builder b_{graph_};
  std::vector<Tensor> inputs_;
  std::vector<double> tolerances_;
};

class NarrowLibraryFusionTest : public LibraryFusionTest {
 protected:
  NarrowLibraryFusionTest() : LibraryFusionTest(DType::kF16) {}
};

TEST_F(LibraryFusionTest, SumsItsResult) {
  const Node* conv = Conv(Image(), In({6, 3, 3, 3}));
  const Node* node = Fuse(conv, [](auto& f) { f.AddChannelSums(); });
  ASSERT_EQ(node->num_outputs(), 3u);
  Value* y = conv->output();
  ExpectEqual(node->output(0), y);
  ExpectEqual(node->output(1), b_.ReduceSum(y, {0, 2, 3}));
  ExpectEqual(node->output(2), b_.ReduceSum(b_.Times(y, y), {0, 2, 3}));
  Check();
  const auto sums = ChannelSumsOf(*node->output(0));
  ASSERT_TRUE(sums.has_value());
  EXPECT_EQ(sums->sum, node->output(1));
  EXPECT_EQ(sums->squares, node->output(2));
  EXPECT_FALSE(ChannelSumsOf(*node->output(1)).has_value());
  EXPECT_FALSE(ChannelSumsOf(*y).has_value());
}

// Sums of values before rounding would be different.
TEST_F(NarrowLibraryFusionTest, SumsWhatItStores) {
  const Node* conv = Conv(Image(), In({6, 3, 3, 3}));
  const Node* node = Fuse(conv, [](auto& f) { f.AddChannelSums(); });
  EXPECT_EQ(node->output(1)->type(), (TensorType{DType::kF32, {6}, {}}));
  Value* y = b_.Cast(conv->output(), DType::kF64);
  ExpectEqual(node->output(1), b_.ReduceSum(y, {0, 2, 3}));
  ExpectEqual(node->output(2), b_.ReduceSum(b_.Times(y, y), {0, 2, 3}));
  Check(EvalMode::kTyped);
}

TEST_F(NarrowLibraryFusionTest, RoundsThePrologueBeforeTheConvolution) {
  Value* x = Image();
  Value* w = In({6, 3, 3, 3});
  Value* scale = Vector();
  Value* shift = Vector();
  const Node* node = Fuse(Conv(Image(), w), [&](auto& f) {
    f.SetPrologue({x, scale, shift});
  });
  Value* wide = Scaled(b_.Cast(x, DType::kF32), b_.Cast(scale, DType::kF32),
                       b_.Cast(shift, DType::kF32));
  Value* read = b_.Cast(b_.Relu(wide), DType::kF16);
  ExpectEqual(node->output(), Conv(read, w)->output(), 0);
  Check(EvalMode::kTyped);
}

TEST_F(LibraryFusionTest, ReadsANormalisation) {
  Value* x = Image();
  Value* w = In({6, 3, 3, 3});
  Value* dy = In({2, 6, 5, 4});
  Value* scale = Vector();
  Value* shift = Vector();
  Value* read = b_.Relu(Scaled(x, scale, shift));
  const auto prologue = [&](LibraryFusion& f) {
    f.SetPrologue({x, scale, shift});
  };
  const Node* conv = Conv(read, w);
  ExpectEqual(Fuse(conv, prologue)->output(), conv->output());
  Attrs attrs = kPad;
  attrs.Set("weight_shape", std::vector<int64_t>{6, 3, 3, 3});
  const Node* gradient = b_.Add("conv2d_grad_weight", {read, dy}, attrs);
  const Node* node = Fuse(gradient, prologue);
  ExpectEqual(node->output(), gradient->output());
  // The fusion does not read the value that its prologue computes.
  EXPECT_EQ(node->inputs(), (std::vector<Value*>{x, dy, scale, shift}));
  Check();
}

class LibraryPrologueTest : public LibraryFusionTest,
                            public testing::WithParamInterface<bool> {};

TEST_P(LibraryPrologueTest, ReadsAndStoresABlockEnd) {
  Value* x = Image();
  Value* w = In({6, 3, 3, 3});
  LibraryFusion::Prologue prologue{x, Vector(), Vector(), Image()};
  Value* sum = Scaled(x, prologue.scale, prologue.shift);
  Value* addend = prologue.addend;
  if (GetParam()) {
    prologue.addend_scale = Vector();
    prologue.addend_shift = Vector();
    addend = Scaled(addend, prologue.addend_scale, prologue.addend_shift);
  }
  Value* read = b_.Relu(b_.Plus(sum, addend));
  const Node* conv = Conv(read, w);
  const Node* node = Fuse(conv, [&](auto& f) {
    f.AddChannelSums();
    f.SetPrologue(prologue);
  });
  ASSERT_EQ(node->num_outputs(), 4u);
  EXPECT_EQ(node->output(3)->type(), x->type());
  ExpectEqual(node->output(0), conv->output());
  ExpectEqual(node->output(1), b_.ReduceSum(conv->output(), {0, 2, 3}));
  ExpectEqual(node->output(3), read);
  EXPECT_TRUE(ChannelSumsOf(*node->output(0)).has_value());
  EXPECT_FALSE(ChannelSumsOf(*node->output(3)).has_value());
  Check();
}

INSTANTIATE_TEST_SUITE_P(Addends, LibraryPrologueTest, testing::Bool(),
                         [](const auto& scaled) {
                           return scaled.param ? "Scaled" : "Plain";
                         });

class LibraryGradientTest : public LibraryFusionTest,
                            public testing::WithParamInterface<std::string> {
 protected:
  struct Norm {
    SavedNorm saved;
    Value* variance;
  };
  Norm MakeNorm() {
    Value* variance = Vector(0.5);
    Value* rstd = b_.Rsqrt(b_.Plus(variance, kEpsilon));
    return {{Image(), Vector(), rstd, Vector(), Vector()}, variance};
  }
  Value* Apply(const SavedNorm& n) {
    return Scaled(b_.Times(b_.Minus(n.x, Spread(n.mean, n.x)),
                           Spread(n.inverse_deviation, n.x)),
                  n.scale, n.bias);
  }
  // Checks results from `first` on: they are the sums of `norm`.
  // batch_norm_grad's gradient for dz is dx = a dz + b x + c.
  void ExpectSums(const Node* node, size_t first, const Norm& norm, Value* dz) {
    const SavedNorm& n = norm.saved;
    const Node* grad = b_.Add("batch_norm_grad",
                              {dz, n.x, n.scale, n.bias, n.mean, norm.variance},
                              {{"epsilon", kEpsilon}});
    ExpectEqual(node->output(first), grad->output(1));
    ExpectEqual(node->output(first + 1), grad->output(2));
    const auto wide = [&](size_t i) {
      return Spread(node->output(first + i), n.x);
    };
    ExpectEqual(b_.Plus(b_.Times(dz, wide(2)),
                        b_.Plus(b_.Times(n.x, wide(3)), wide(4))),
                grad->output(0));
  }
};

TEST_P(LibraryGradientTest, MasksAndSumsADataGradient) {
  const Node* conv = GradInput(In({2, 6, 5, 4}), In({6, 3, 3, 3}));
  Value* added = Image();
  std::vector<Norm> norms{MakeNorm()};
  Value* y = Apply(norms[0].saved);
  Value* shortcut = nullptr;
  if (GetParam() == "shortcut") {
    shortcut = Image();
    y = b_.Plus(y, shortcut);
  } else if (GetParam() == "two") {
    norms.push_back(MakeNorm());
    y = b_.Plus(y, Apply(norms[1].saved));
  }
  const Node* node = Fuse(conv, [&](auto& f) {
    f.Add(added);
    std::vector<SavedNorm> saved;
    for (const Norm& norm : norms) saved.push_back(norm.saved);
    f.MaskAndSum(saved, shortcut);
  });
  Value* d = b_.Plus(conv->output(), added);
  Value* dz = b_.Select(b_.Compare("gt", y, 0.0), d, b_.Zeros(d->type()));
  ExpectEqual(node->output(0), dz);
  for (size_t n = 0; n < norms.size(); ++n) {
    ExpectSums(node, 1 + 5 * n, norms[n], dz);
  }
  EXPECT_EQ(node->num_outputs(), 1 + 5 * norms.size());
  EXPECT_FALSE(AccumulatedInput(*node->body()).has_value());
  Check();
}

INSTANTIATE_TEST_SUITE_P(Norms, LibraryGradientTest,
                         testing::Values("one", "shortcut", "two"),
                         [](const auto& norms) { return norms.param; });

TEST_F(NarrowLibraryFusionTest, AddsBeforeItRounds) {
  Value* added = Image();
  const Node* conv = GradInput(In({2, 6, 5, 4}), In({6, 3, 3, 3}));
  const Node* node = Fuse(conv, [&](auto& f) { f.Add(added); });
  Attrs wide = GradInputAttrs();
  wide.Set("result_dtype", std::string("f32"));
  Value* dx =
      b_.Add("conv2d_grad_input", {conv->input(0), conv->input(1)}, wide)
          ->output();
  Value* sum = b_.Plus(dx, b_.Cast(added, DType::kF32));
  ExpectEqual(node->output(), b_.Cast(sum, DType::kF16), 0);
  EXPECT_EQ(AccumulatedInput(*node->body()), 2u);
  Check(EvalMode::kTyped);
}

TEST_F(LibraryFusionTest, AddsABiasAndTakesTheRelu) {
  const Node* matmul = b_.Matmul(In({2, 3, 4}), In({2, 4, 6}))->producer();
  Value* bias = In({6});
  Value* sum = b_.Plus(matmul->output(),
                       b_.BroadcastAlong(bias, matmul->output()->type(), 2));
  const Node* biased = Fuse(matmul, [&](auto& f) { f.AddBias(bias); });
  const Node* both = Fuse(biased, [](auto& f) { f.AddRelu(); });
  const Node* conv = Conv(Image(), In({6, 3, 3, 3}));
  const Node* positive = Fuse(conv, [](auto& f) { f.AddRelu(); });
  ExpectEqual(biased->output(), sum);
  ExpectEqual(both->output(), b_.Relu(sum));
  ExpectEqual(positive->output(), b_.Relu(conv->output()));
  Check();
  const auto expect = [](const Node& node, bool has_bias, bool has_relu) {
    const auto epilogue = EpilogueOf(node);
    ASSERT_TRUE(epilogue.has_value());
    EXPECT_EQ(epilogue->bias, has_bias);
    EXPECT_EQ(epilogue->relu, has_relu);
  };
  expect(*matmul, false, false);
  expect(*biased, true, false);
  expect(*both, true, true);
  expect(*positive, false, true);
}

// The sum is rounded once: there is no 2049 in f16.
TEST_F(NarrowLibraryFusionTest, AddsABiasBeforeItRounds) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f16[1,1]
    %w = data : f16[1,1]
    %bias = data : f16[1]
    %y = matmul(%x, %w) : f16[1,1]
    return %y as "y"
  })");
  LibraryFusion fusion(*graph->nodes()[0]);
  fusion.AddBias(graph->input(2));
  const Node* node = std::move(fusion).Build(*graph, nullptr);
  graph->mutable_outputs()[0].value = node->output();
  const auto number = [&](size_t input, double value) {
    return Tensor{graph->input(input)->type(), {value}};
  };
  const std::vector<Tensor> inputs{number(0, 2.0), number(1, 1024.5),
                                   number(2, 1.0)};
  EXPECT_EQ(Interpret(*graph, inputs, EvalMode::kTyped)[0].data[0], 2050);
}

TEST_F(LibraryFusionTest, OtherBodiesAreNoEpilogues) {
  Value* x = Image();
  Value* w = In({6, 3, 3, 3});
  const Node* conv = Conv(x, w);
  EXPECT_FALSE(EpilogueOf(*Fuse(conv, [](auto& f) { f.AddChannelSums(); })));
  EXPECT_FALSE(EpilogueOf(*Fuse(conv, [&](auto& f) {
    f.SetPrologue({x, Vector(), Vector()});
  })));
  const Node* gradient = GradInput(In({2, 6, 5, 4}), w);
  EXPECT_FALSE(EpilogueOf(*Fuse(gradient, [&](auto& f) { f.Add(x); })));
}

// Layers with equal calls share one call. Names and locations are ignored.
TEST_F(LibraryFusionTest, BodiesOfEqualCallsAreEqual) {
  Value* x = Image();
  Value* w = In({6, 3, 3, 3});
  b_.set_location("layer1");
  const Node* first = Fuse(Conv(x, w), [](auto& f) { f.AddChannelSums(); });
  b_.set_location("layer2");
  const Node* second = Fuse(Conv(Image(), In({6, 3, 3, 3})),
                            [](auto& f) { f.AddChannelSums(); });
  EXPECT_TRUE(SameGraph(*first->body(), *second->body(), true));
  EXPECT_EQ(first->location().path, "layer1");
}

TEST_F(LibraryFusionTest, IsAConvolutionWithMoreToIt) {
  Value* x = Image();
  Value* w = In({6, 3, 3, 3});
  const Node* conv = Conv(x, w);
  const Node* node = Fuse(conv, [&](auto& f) {
    f.AddChannelSums();
    f.SetPrologue({x, Vector(), Vector()});
  });
  EXPECT_EQ(LibraryProblem(*node),
            "conv2d x=2x3x5x4 w=6x3x3x3 stride=1,1 pad=1,1 dilation=1,1 "
            "groups=1 fused=mul,add,relu,conv2d,reduce,mul,reduce");
  EXPECT_FALSE(IsPlainConvolution(*node));
  EXPECT_TRUE(IsPlainConvolution(*conv));
  EXPECT_FALSE(IsPlainConvolution(*b_.Relu(x)->producer()));
  EXPECT_TRUE(IsLibraryFusion(*node));
  EXPECT_FALSE(IsKernelFusion(*node));
  EXPECT_EQ(LibraryOp(*node).kind(), OpKind::kConv2d);
  EXPECT_EQ(NodeMacs(*node), NodeMacs(*conv));
}

// Checks the text that dumps and tests use.
TEST_F(LibraryFusionTest, IsPrintedWithItsBody) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f16[1,2,4,4]
    %w = data : f16[2,2,1,1]
    %y = conv2d(%x, %w) : f16[1,2,4,4] @"conv"
    return %y as "y"
  })");
  LibraryFusion fusion(*graph->nodes()[0]);
  fusion.AddChannelSums();
  const Node* node = std::move(fusion).Build(*graph, nullptr);
  graph->mutable_outputs()[0].value = node->output(1);
  graph->Erase(graph->nodes()[0].get());
  test::ExpectSameGraph(R"(graph g {
    %x = data : f16[1,2,4,4]
    %w = data : f16[2,2,1,1]
    %f, %s, %q = fusion(%x, %w) {kind="library"}
        : f16[1,2,4,4], f32[2], f32[2] @"conv" {
      %x = data : f16[1,2,4,4]
      %w = data : f16[2,2,1,1]
      %c = conv2d(%x, %w) : f16[1,2,4,4]
      %wide = cast(%c) {dtype="f32"} : f32[1,2,4,4]
      %sum = reduce(%wide) {dims=[0,2,3], kind="sum"} : f32[2]
      %square = mul(%wide, %wide) : f32[1,2,4,4]
      %squares = reduce(%square) {dims=[0,2,3], kind="sum"} : f32[2]
      return %c as "conv2d", %sum as "reduce", %squares as "reduce_1"
    }
    return %s as "y"
  })",
                        *graph);
}

TEST_F(LibraryFusionTest, ExpressionsOfOtherOperandsDiffer) {
  Value* x = Image();
  Value* y = Image();
  EXPECT_TRUE(SameExpression(*b_.Plus(x, y), *b_.Plus(x, y)));
  EXPECT_FALSE(SameExpression(*b_.Plus(x, y), *b_.Plus(y, x)));
  EXPECT_FALSE(SameExpression(*b_.Plus(x, y), *b_.Minus(x, y)));
  EXPECT_FALSE(SameExpression(*b_.ReduceSum(x, {0}), *b_.ReduceMax(x, {0})));
  EXPECT_FALSE(SameExpression(*x, *y));
}

}  // namespace
}  // namespace fusor::ir
