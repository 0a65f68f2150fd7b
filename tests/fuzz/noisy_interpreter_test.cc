#include "tests/fuzz/noisy_interpreter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/testing/graph_text.h"
#include "tools/inspect/bisect/draw_inputs.h"

namespace fusor::fuzz {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

// Interprets a module. The first element of its first input is NaN.
NoisyOutputs WithNan(std::string_view text) {
  const auto graph = test::ParseOrDie(text);
  std::vector<ir::Tensor> inputs = inspect::DrawInputs(*graph, 1);
  inputs[0].data[0] = NAN;
  return InterpretNoisy(*graph, inputs, {.samples = 60});
}

// A library that pads one channel to two multiplies the next pixel by zero.
TEST(NoisyInterpreter, AConvolutionMaySpreadNanAndMustKeepIt) {
  const NoisyOutputs expected = WithNan(R"(graph one_channel {
    %x = data : bf16[1,1,1,5]
    %w = data : bf16[16,1,1,1]
    %c = conv2d(%x, %w) : bf16[1,16,1,5]
    %r = relu(%x) : bf16[1,1,1,5]
    return %c as "c", %r as "r"
  })");
  EXPECT_TRUE(expected.may_spread);
  ir::Tensor convolved = expected.typed[0];
  ASSERT_TRUE(std::isnan(convolved.data[0]));
  ASSERT_FALSE(std::isnan(convolved.data[1]));
  EXPECT_EQ(Mismatch(expected, 0, convolved), std::nullopt);
  convolved.data[1] = NAN;
  EXPECT_EQ(Mismatch(expected, 0, convolved), std::nullopt);
  convolved.data[0] = 1;
  EXPECT_THAT(Mismatch(expected, 0, convolved),
              Optional(HasSubstr("element 0 of 80: got 1, expected nan")));
  // Only convolutions may spread NaN.
  ir::Tensor positive = expected.typed[1];
  positive.data[1] = NAN;
  EXPECT_THAT(Mismatch(expected, 1, positive),
              Optional(HasSubstr("element 1 of 5: got nan")));
}

TEST(NoisyInterpreter, AWeightGradientMaySpreadNan) {
  const NoisyOutputs expected = WithNan(R"(graph weight_gradient {
    %x = data : f32[1,2,3,3]
    %dy = data : f32[1,2,3,3]
    %dw = conv2d_grad_weight(%x, %dy) {weight_shape=[2,2,1,1]} : f32[2,2,1,1]
    return %dw as "dw"
  })");
  EXPECT_TRUE(expected.may_spread);
  ir::Tensor gradient = expected.typed[0];
  for (double& x : gradient.data) x = NAN;
  EXPECT_EQ(Mismatch(expected, 0, gradient), std::nullopt);
}

// Such as to the pixels that meet padding.
TEST(NoisyInterpreter, AConvolutionMaySpreadNanToSomeElements) {
  const NoisyOutputs expected = WithNan(R"(graph some {
    %x = data : f32[1,1,1,3]
    %w = data : f32[1,1,1,1]
    %c = conv2d(%x, %w) : f32[1,1,1,3]
    %nan = compare(%c, %c) {direction="ne"} : bool[1,1,1,3]
    %number = compare(%c, %c) {direction="eq"} : bool[1,1,1,3]
    %second = slice(%nan) {limit=[1,1,1,2], start=[0,0,0,1], stride=[1,1,1,1]} : bool[1,1,1,1]
    %third = slice(%number) {limit=[1,1,1,3], start=[0,0,0,2], stride=[1,1,1,1]} : bool[1,1,1,1]
    %both = and(%second, %third) : bool[1,1,1,1]
    return %both as "both"
  })");
  ir::Tensor both = expected.typed[0];
  ASSERT_EQ(both.data[0], 0);
  both.data[0] = 1;
  EXPECT_EQ(Mismatch(expected, 0, both), std::nullopt);
}

TEST(NoisyInterpreter, FiniteConvolutionsSpreadNothing) {
  const NoisyOutputs expected = WithNan(R"(graph finite {
    %n = data : f32[2]
    %x = data : f32[1,2,3,3]
    %w = data : f32[2,2,3,3]
    %c = conv2d(%x, %w) {pad=[1,1]} : f32[1,2,3,3]
    return %c as "c", %n as "n"
  })");
  EXPECT_FALSE(expected.may_spread);
  ir::Tensor convolved = expected.typed[0];
  convolved.data[3] = NAN;
  EXPECT_NE(Mismatch(expected, 0, convolved), std::nullopt);
}

// The elements of one channel cancel, so that their mean has the error of their
// partial sums.
TEST(NoisyInterpreter, TermsOfAMeanMayCancel) {
  const auto graph = test::ParseOrDie(R"(graph g {
  %x = data : f32[4,1,1,1]
  %gamma = data : f32[1]
  %beta = data : f32[1]
  %y, %mean, %variance = batch_norm_train(%x, %gamma, %beta) {epsilon=0.01} : f32[4,1,1,1], f32[1], f32[1]
  return %mean as "mean"
})");
  const std::vector<ir::Tensor> inputs = {
      {graph->input(0)->type(), {1.5, -1.5, 1.0 / 512, 0}},
      {graph->input(1)->type(), {1}},
      {graph->input(2)->type(), {0}}};
  const NoisyOutputs outputs = InterpretNoisy(*graph, inputs, {});
  ir::Tensor mean = outputs.typed[0];
  mean.data[0] += 1e-7;
  EXPECT_EQ(Mismatch(outputs, 0, mean), std::nullopt);
  mean.data[0] += 1e-3;
  EXPECT_NE(Mismatch(outputs, 0, mean), std::nullopt);
}

// A fused kernel keeps x - y unrounded, so that adding y gives x again. Rounded
// to the steps of large numbers, it cannot.
TEST(NoisyInterpreter, FusedKernelsMayKeepValuesUnrounded) {
  const auto graph = test::ParseOrDie(R"(graph g {
  %x = data : bf16[1]
  %y = data : bf16[1]
  %difference = sub(%x, %y) : bf16[1]
  %again = add(%difference, %y) : bf16[1]
  %equal = compare(%again, %x) {direction="eq"} : bool[1]
  return %equal as "equal"
})");
  const ir::TensorType type = graph->input(0)->type();
  const std::vector<ir::Tensor> inputs = {{type, {1}}, {type, {1000}}};
  const NoisyOutputs outputs = InterpretNoisy(*graph, inputs, {.samples = 60});
  ir::Tensor equal = outputs.typed[0];
  ASSERT_EQ(equal.data[0], 0);
  equal.data[0] = 1;
  EXPECT_EQ(Mismatch(outputs, 0, equal), std::nullopt);
}

// Adding equal numbers one after another rounds many partial sums in the same
// direction: here 3,536 times in f32, by up to 1.7e-5 in all.
TEST(NoisyInterpreter, EqualTermsMayBeAddedOneAfterAnother) {
  const auto graph = test::ParseOrDie(R"(graph g {
  %x = data : f32[3536]
  %y = reduce(%x) {dims=[0], kind="sum"} : f32[]
  return %y
})");
  ir::Tensor x{graph->input(0)->type(), std::vector<double>(3536, 1.8449)};
  for (double& term : x.data) term = static_cast<float>(term);
  float sum = 0;
  double exact = 0;
  for (const double term : x.data) {
    sum += static_cast<float>(term);
    exact += term;
  }
  const NoisyOutputs outputs = InterpretNoisy(*graph, std::vector{x}, {});
  ir::Tensor actual = outputs.typed[0];
  actual.data[0] = sum;
  EXPECT_GT(std::abs(sum - exact), 1e-6 * exact);
  EXPECT_EQ(Mismatch(outputs, 0, actual), std::nullopt);
  actual.data[0] = exact - x.data[0];  // lacks a term
  EXPECT_NE(Mismatch(outputs, 0, actual), std::nullopt);

  const auto sums = test::ParseOrDie(R"(graph g {
  %x = data : f32[3536]
  %y = cumsum(%x) {dim=0} : f32[3536]
  return %y
})");
  const NoisyOutputs each = InterpretNoisy(*sums, std::vector{x}, {});
  actual = each.typed[0];
  actual.data.back() = sum;
  EXPECT_EQ(Mismatch(each, 0, actual), std::nullopt);
}

}  // namespace
}  // namespace fusor::fuzz
