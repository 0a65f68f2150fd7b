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

// Images with few 2-byte channels: without a workspace, with a padded copy of
// 16 bytes per pixel, and with partial sums.
TEST(ConvolutionExcess, IsOfNarrowPixels) {
  const Target target = FindTarget("nvidia-h200");
  const auto excess = [&](int64_t channels, int64_t workspace, ConvKind kind) {
    const Convolution conv{kind,
                           {DType::kF16, {2, channels, 8, 8}, {}},
                           {DType::kF16, {4, channels, 3, 3}, {}},
                           {DType::kF16, {2, 4, 8, 8}, {}}};
    return ExcessOf(conv, workspace, target);
  };
  // 2 x 8 x 8 windows with 3 x 3 x 3 elements, each one load.
  const ConvolutionExcess narrow = excess(3, 0, ConvKind::kForward);
  EXPECT_EQ(narrow.bytes, 0);
  EXPECT_EQ(narrow.macs, 1);
  EXPECT_DOUBLE_EQ(narrow.load_ns, 128 * 27 * 8 / target.peak_gflops_f32);
  const int64_t copy = 2 * 8 * 8 * 16;
  const ConvolutionExcess copied = excess(3, copy, ConvKind::kGradWeight);
  EXPECT_EQ(copied.bytes, 2 * copy);
  EXPECT_DOUBLE_EQ(copied.macs, 8.0 / 3);
  EXPECT_EQ(copied.load_ns, 0);
  EXPECT_GT(excess(3, copy - 1, ConvKind::kGradWeight).load_ns, 0);
  for (const int64_t wide : {2, 4, 8, 64}) {
    const ConvolutionExcess none = excess(wide, 0, ConvKind::kForward);
    EXPECT_EQ(none.load_ns, 0) << wide;
    EXPECT_EQ(none.macs, 1) << wide;
  }
  const ConvolutionExcess sums = excess(8, 4096, ConvKind::kGradWeight);
  EXPECT_EQ(sums.bytes, 8192);
  EXPECT_EQ(sums.macs, 1);
  EXPECT_EQ(excess(3, 0, ConvKind::kGradInput).load_ns, 0);
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
