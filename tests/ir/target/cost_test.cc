#include "ir/target/cost.h"

#include <gtest/gtest.h>

#include "tests/testing/graph_text.h"

namespace fusor::ir {
namespace {

int64_t FlopsOf(std::string_view text) {
  const auto graph = test::ParseOrDie(text);
  return NodeFlops(*graph->nodes().back());
}

TEST(Flops, ConvolutionAndItsGradientsAreTheSame) {
  const int64_t expected = 2 * (2 * 8 * 5 * 5) * (4 * 3 * 3);
  EXPECT_EQ(FlopsOf(R"(
    graph g {
      %x = data : f32[2,4,5,5]
      %w = weight : f32[8,4,3,3]
      %y = conv2d(%x, %w) {pad=[1,1]} : f32[2,8,5,5]
      return %y as "y"
    })"),
            expected);
  EXPECT_EQ(FlopsOf(R"(
    graph g {
      %dy = data : f32[2,8,5,5]
      %w = weight : f32[8,4,3,3]
      %dx = conv2d_grad_input(%dy, %w) {input_shape=[2,4,5,5], pad=[1,1]}
        : f32[2,4,5,5]
      return %dx as "y"
    })"),
            expected);
  EXPECT_EQ(FlopsOf(R"(
    graph g {
      %x = data : f32[2,4,5,5]
      %dy = data : f32[2,8,5,5]
      %dw = conv2d_grad_weight(%x, %dy) {pad=[1,1], weight_shape=[8,4,3,3]}
        : f32[8,4,3,3]
      return %dw as "y"
    })"),
            expected);
}

TEST(Flops, MatmulCountsTheInnerDimensionOnceTransposedOrNot) {
  EXPECT_EQ(FlopsOf(R"(
    graph g {
      %a = data : f32[3,4]
      %b = data : f32[4,5]
      %y = matmul(%a, %b) : f32[3,5]
      return %y as "y"
    })"),
            2 * 3 * 4 * 5);
  EXPECT_EQ(FlopsOf(R"(
    graph g {
      %a = data : f32[4,3]
      %b = data : f32[5,4]
      %y = matmul(%a, %b) {transpose_a=true, transpose_b=true} : f32[3,5]
      return %y as "y"
    })"),
            2 * 3 * 4 * 5);
}

TEST(Flops, AFusionIsTheSumOfItsBody) {
  EXPECT_EQ(FlopsOf(R"(
    graph g {
      %x = data : f32[8,4]
      %y = fusion(%x) : f32[8] graph body {
        %p = data : f32[8,4]
        %t = transpose(%p) {permutation=[1,0]} : f32[4,8]
        %e = exp(%t) : f32[4,8]
        %s = reduce(%e) {dims=[0], kind="sum"} : f32[8]
        return %s
      }
      return %y as "y"
    })"),
            32 + 32);
}

}  // namespace
}  // namespace fusor::ir
