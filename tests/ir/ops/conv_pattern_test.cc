// What convolutions compute beside themselves, against the same by other ops.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/builder.h"
#include "ir/support/error.h"
#include "ir/target/conv_problem.h"
#include "tests/testing/numeric.h"

namespace fusor::ir {
namespace {

using test::AllClose;
using ::testing::HasSubstr;

constexpr double kEpsilon = 1e-3;

// Inputs of a graph in the making, in one dtype.
class ConvPatternTest : public testing::Test {
 protected:
  explicit ConvPatternTest(DType dtype = DType::kF64) : dtype_(dtype) {}

  Value* In(Shape shape, double low = -1) {
    const TensorType type{dtype_, std::move(shape), {}};
    inputs_.push_back(
        test::RandomTensor(type, inputs_.size() + 1, low, low + 2));
    return graph_.AddInput(type, InputRole::kData, "x");
  }
  Value* Vector(double low = -1) { return In({3}, low); }
  Value* Image() { return In({2, 3, 5, 4}); }

  void ExpectEqual(Value* actual, Value* expected, double tolerance = 1e-6) {
    pairs_.push_back(tolerance);
    graph_.AddOutput(actual, "actual");
    graph_.AddOutput(expected, "expected");
  }
  void Check(EvalMode mode = EvalMode::kExact) {
    const std::vector<Tensor> outputs = Interpret(graph_, inputs_, mode);
    for (size_t i = 0; i < pairs_.size(); ++i) {
      Tensor expected = outputs[2 * i + 1];
      expected.type.dtype = outputs[2 * i].type.dtype;
      EXPECT_TRUE(AllClose(outputs[2 * i], expected, pairs_[i], pairs_[i]))
          << i;
    }
  }

  Value* Spread(Value* v, Value* like) {
    return b_.BroadcastAlong(v, like->type(), 1);
  }
  Value* Scaled(Value* x, Value* scale, Value* bias) {
    return b_.Plus(b_.Times(x, Spread(scale, x)), Spread(bias, x));
  }

  std::string Refusal(std::string_view op, std::vector<Value*> inputs,
                      Attrs attrs) {
    try {
      b_.Add(op, std::move(inputs), std::move(attrs));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kGraph);
      return e.what();
    }
    return "accepted";
  }

  const DType dtype_;
  Graph graph_;
  Builder b_{graph_};
  std::vector<Tensor> inputs_;
  std::vector<double> pairs_;  // tolerances
};

const Attrs kPad = {{"pad", std::vector<int64_t>{1, 1}}};

Attrs With(Attrs attrs,
           std::initializer_list<std::pair<const char*, AttrValue>> more) {
  for (const auto& [name, value] : more) attrs.Set(name, value);
  return attrs;
}

TEST_F(ConvPatternTest, SumsUpItsResult) {
  Value* x = Image();
  Value* w = In({6, 3, 3, 3});
  const Node* node =
      b_.Add("conv2d", {x, w}, With(kPad, {{"statistics", true}}));
  Value* y = b_.Add("conv2d", {x, w}, kPad)->output();
  ASSERT_EQ(node->num_outputs(), 3u);
  EXPECT_EQ(node->output(1)->type(), (TensorType{DType::kF32, {6}, {}}));
  ExpectEqual(node->output(0), y);
  ExpectEqual(node->output(1), b_.ReduceSum(y, {0, 2, 3}));
  ExpectEqual(node->output(2), b_.ReduceSum(b_.Times(y, y), {0, 2, 3}));
  Check();
}

class NarrowConvPatternTest : public ConvPatternTest {
 protected:
  NarrowConvPatternTest() : ConvPatternTest(DType::kF16) {}
};

// Of what is stored: sums of what it was before it was rounded are others.
TEST_F(NarrowConvPatternTest, SumsUpWhatItStores) {
  Value* x = Image();
  Value* w = In({6, 3, 3, 3});
  const Node* node =
      b_.Add("conv2d", {x, w}, With(kPad, {{"statistics", true}}));
  Value* y = b_.Cast(b_.Add("conv2d", {x, w}, kPad)->output(), DType::kF64);
  ExpectEqual(node->output(1), b_.ReduceSum(y, {0, 2, 3}));
  ExpectEqual(node->output(2), b_.ReduceSum(b_.Times(y, y), {0, 2, 3}));
  Check(EvalMode::kTyped);
}

TEST_F(NarrowConvPatternTest, RoundsWhatAPrologueLeaves) {
  Value* x = Image();
  Value* w = In({6, 3, 3, 3});
  Value* scale = Vector();
  Value* bias = Vector();
  Value* fused = b_.Add("conv2d", {x, w, scale, bias},
                        With(kPad, {{"prologue", std::string("norm")}}))
                     ->output();
  Value* wide = Scaled(b_.Cast(x, DType::kF64), b_.Cast(scale, DType::kF64),
                       b_.Cast(bias, DType::kF64));
  Value* read = b_.Cast(b_.Relu(wide), DType::kF16);
  ExpectEqual(fused, b_.Add("conv2d", {read, w}, kPad)->output(), 0);
  Check(EvalMode::kTyped);
}

TEST_F(ConvPatternTest, ReadsANormalisation) {
  Value* x = Image();
  Value* w = In({6, 3, 3, 3});
  Value* dy = In({2, 6, 5, 4});
  Value* scale = Vector();
  Value* bias = Vector();
  Value* read = b_.Relu(Scaled(x, scale, bias));
  const Attrs attrs = With(kPad, {{"prologue", std::string("norm")}});
  ExpectEqual(b_.Add("conv2d", {x, w, scale, bias}, attrs)->output(),
              b_.Add("conv2d", {read, w}, kPad)->output());
  const std::pair<const char*, AttrValue> shape{
      "weight_shape", std::vector<int64_t>{6, 3, 3, 3}};
  ExpectEqual(
      b_.Add("conv2d_grad_weight", {x, dy, scale, bias}, With(attrs, {shape}))
          ->output(),
      b_.Add("conv2d_grad_weight", {read, dy}, With(kPad, {shape}))->output());
  Check();
}

class JoinPatternTest : public ConvPatternTest,
                        public testing::WithParamInterface<std::string> {};

TEST_P(JoinPatternTest, ReadsAndStoresAJoin) {
  Value* x = Image();
  Value* w = In({6, 3, 3, 3});
  Value* other = Image();
  std::vector<Value*> operands{x, w, Vector(), Vector(), other};
  Value* sum = Scaled(x, operands[2], operands[3]);
  if (GetParam() == "dual") {
    operands.insert(operands.end(), {Vector(), Vector()});
    other = Scaled(other, operands[5], operands[6]);
  }
  Value* read = b_.Relu(b_.Plus(sum, other));
  const Node* node =
      b_.Add("conv2d", operands,
             With(kPad, {{"prologue", GetParam()}, {"statistics", true}}));
  Value* z = b_.Add("conv2d", {read, w}, kPad)->output();
  ASSERT_EQ(node->num_outputs(), 4u);
  EXPECT_EQ(node->output(3)->type(), x->type());
  ExpectEqual(node->output(0), z);
  ExpectEqual(node->output(1), b_.ReduceSum(z, {0, 2, 3}));
  ExpectEqual(node->output(3), read);
  const Node* bare =
      b_.Add("conv2d", operands, With(kPad, {{"prologue", GetParam()}}));
  ASSERT_EQ(bare->num_outputs(), 2u);
  ExpectEqual(bare->output(1), read);
  Check();
}

INSTANTIATE_TEST_SUITE_P(Joins, JoinPatternTest,
                         testing::Values("join", "dual"),
                         [](const auto& kind) { return kind.param; });

TEST_F(NarrowConvPatternTest, ReadsWhatItStores) {
  Value* x = Image();
  Value* w = In({6, 3, 3, 3});
  const Node* node = b_.Add("conv2d", {x, w, Vector(), Vector(), Image()},
                            With(kPad, {{"prologue", std::string("join")}}));
  ExpectEqual(node->output(0),
              b_.Add("conv2d", {node->output(1), w}, kPad)->output(), 0);
  Check(EvalMode::kTyped);
}

// A normalisation as a data gradient takes it.
struct Norm {
  Value* x;
  Value* mean;
  Value* variance;
  Value* rstd;
  Value* gamma;
  Value* beta;
};

class GradInputPatternTest : public ConvPatternTest,
                             public testing::WithParamInterface<std::string> {
 protected:
  Norm MakeNorm() {
    Value* variance = Vector(0.5);
    return {Image(),  Vector(), variance, b_.Rsqrt(b_.Plus(variance, kEpsilon)),
            Vector(), Vector()};
  }
  void Append(const Norm& n, std::vector<Value*>& operands) {
    operands.insert(operands.end(), {n.x, n.mean, n.rstd, n.gamma, n.beta});
  }
  Value* Apply(const Norm& n) {
    return Scaled(
        b_.Times(b_.Minus(n.x, Spread(n.mean, n.x)), Spread(n.rstd, n.x)),
        n.gamma, n.beta);
  }
  // Result `first` and following of `node` are the sums of `n`, whose gradient
  // by batch_norm_grad from dz is dx = a dz + b x + c.
  void ExpectSums(const Node* node, size_t first, const Norm& n, Value* dz) {
    const Node* grad = b_.Add("batch_norm_grad",
                              {dz, n.x, n.gamma, n.beta, n.mean, n.variance},
                              {{"epsilon", kEpsilon}});
    ExpectEqual(node->output(first), grad->output(1));
    ExpectEqual(node->output(first + 1), grad->output(2));
    const auto wide = [&](size_t i) {
      return Spread(b_.Cast(node->output(first + i), DType::kF64), n.x);
    };
    ExpectEqual(b_.Plus(b_.Times(dz, wide(2)),
                        b_.Plus(b_.Times(n.x, wide(3)), wide(4))),
                grad->output(0));
  }
};

TEST_P(GradInputPatternTest, MasksAndSumsUp) {
  const std::string& kind = GetParam();
  Value* dy = In({2, 6, 5, 4});
  Value* w = In({6, 3, 3, 3});
  Value* added = Image();
  const Attrs plain =
      With(kPad, {{"input_shape", std::vector<int64_t>{2, 3, 5, 4}}});
  std::vector<Value*> operands{dy, w, added};
  std::vector<Norm> norms{MakeNorm()};
  Append(norms[0], operands);
  Value* y = Apply(norms[0]);
  if (kind == "join") {
    operands.push_back(Image());
    y = b_.Plus(y, operands.back());
  } else if (kind == "dual") {
    norms.push_back(MakeNorm());
    Append(norms[1], operands);
    y = b_.Plus(y, Apply(norms[1]));
  }
  const Node* node = b_.Add("conv2d_grad_input", operands,
                            With(plain, {{"add", true}, {"norm", kind}}));
  Value* d =
      b_.Plus(b_.Add("conv2d_grad_input", {dy, w}, plain)->output(), added);
  Value* dz = b_.Select(b_.Compare("gt", y, 0.0), d, b_.Zeros(d->type()));
  ExpectEqual(node->output(0), dz);
  for (size_t n = 0; n < norms.size(); ++n) {
    ExpectSums(node, 1 + 5 * n, norms[n], dz);
  }
  EXPECT_EQ(node->num_outputs(), 1 + 5 * norms.size());
  Check();
}

INSTANTIATE_TEST_SUITE_P(Norms, GradInputPatternTest,
                         testing::Values("relu", "join", "dual"),
                         [](const auto& kind) { return kind.param; });

TEST_F(ConvPatternTest, AddsToADataGradient) {
  Value* dy = In({2, 6, 5, 4});
  Value* w = In({6, 3, 3, 3});
  Value* added = Image();
  const Attrs plain =
      With(kPad, {{"input_shape", std::vector<int64_t>{2, 3, 5, 4}}});
  Value* expected =
      b_.Plus(b_.Add("conv2d_grad_input", {dy, w}, plain)->output(), added);
  for (const char* how : {"add", "accumulate"}) {
    ExpectEqual(
        b_.Add("conv2d_grad_input", {dy, w, added}, With(plain, {{how, true}}))
            ->output(),
        expected);
  }
  Check();
}

TEST_F(ConvPatternTest, RefusesWhatDoesNotFit) {
  Value* x = Image();
  Value* w = In({6, 3, 3, 3});
  Value* dy = In({2, 6, 5, 4});
  Value* v = Vector();
  const Attrs norm = With(kPad, {{"prologue", std::string("norm")}});
  const Attrs grad =
      With(kPad, {{"input_shape", std::vector<int64_t>{2, 3, 5, 4}}});
  EXPECT_THAT(Refusal("conv2d", {x, w, v}, norm),
              HasSubstr("prologue norm: expected 4 operands, got 3"));
  EXPECT_THAT(Refusal("conv2d", {x, w, v, In({6})}, norm),
              HasSubstr("expected vectors of 3 channels"));
  EXPECT_THAT(Refusal("conv2d", {x, w, v, v}, kPad),
              HasSubstr("expected 2 or 3 operands, got 4"));
  EXPECT_THAT(Refusal("conv2d", {x, w, v, v},
                      With(kPad, {{"prologue", std::string("both")}})),
              HasSubstr("prologue both: expected norm, join or dual"));
  const Attrs join = With(kPad, {{"prologue", std::string("join")}});
  EXPECT_THAT(Refusal("conv2d", {x, w, v, v}, join),
              HasSubstr("prologue join: expected 5 operands, got 4"));
  EXPECT_THAT(Refusal("conv2d", {x, w, v, v, dy}, join),
              HasSubstr("prologue join: expected operand 4 to have the first "
                        "one's type"));
  EXPECT_THAT(Refusal("conv2d", {x, w, v, v, x, v, In({6})},
                      With(kPad, {{"prologue", std::string("dual")}})),
              HasSubstr("expected vectors of 3 channels"));
  EXPECT_THAT(
      Refusal("conv2d_grad_weight", {x, dy, v, v},
              With(join, {{"weight_shape", std::vector<int64_t>{6, 3, 3, 3}}})),
      HasSubstr("prologue join: expected norm"));
  EXPECT_THAT(Refusal("conv2d_grad_input", {dy, w, x}, grad),
              HasSubstr("expected 2 operands, got 3"));
  EXPECT_THAT(
      Refusal("conv2d_grad_input", {dy, w, dy}, With(grad, {{"add", true}})),
      HasSubstr("expected operand 2 to have the result's type"));
  EXPECT_THAT(Refusal("conv2d_grad_input", {dy, w, x, v, v, v, v},
                      With(grad, {{"norm", std::string("join")}})),
              HasSubstr("expected 8 operands, got 7"));
  EXPECT_THAT(Refusal("conv2d_grad_input", {dy, w, x, v, v, v, v},
                      With(grad, {{"norm", std::string("none")}})),
              HasSubstr("norm none: expected relu, join or dual"));
  EXPECT_THAT(Refusal("conv2d_grad_input", {dy, w, x},
                      With(grad, {{"add", true}, {"accumulate", true}})),
              HasSubstr("accumulate: expected no add and no norm"));
}

TEST_F(ConvPatternTest, IsPartOfTheProblem) {
  Value* x = Image();
  Value* w = In({6, 3, 3, 3});
  const Node* node = b_.Add(
      "conv2d", {x, w, Vector(), Vector()},
      With(kPad, {{"prologue", std::string("norm")}, {"statistics", true}}));
  EXPECT_EQ(ConvolutionProblem(*node),
            "conv2d x=2x3x5x4 w=6x3x3x3 stride=1,1 pad=1,1 dilation=1,1 "
            "groups=1 prologue=norm statistics");
  EXPECT_FALSE(IsPlainConvolution(*node));
  EXPECT_TRUE(IsPlainConvolution(*b_.Add("conv2d", {x, w}, kPad)));
  EXPECT_FALSE(IsPlainConvolution(*b_.Relu(x)->producer()));
}

}  // namespace
}  // namespace fusor::ir
