#include "ir/target/conv_problem.h"

#include <gtest/gtest.h>

#include "ir/target/cost.h"
#include "tests/testing/graph_text.h"

namespace fusor::ir {
namespace {

constexpr char kConvolutions[] = R"(graph g {
    %x = data : f32[2,32,14,14]
    %w = weight : f32[64,32,3,3]
    %s = weight : f32[64,32,1,1]
    %y = conv2d(%x, %w) {pad=[1,1]} : f32[2,64,14,14]
    %z = conv2d(%x, %s) {stride=[2,2]} : f32[2,64,7,7]
    %dx = conv2d_grad_input(%y, %w) {input_shape=[2,32,14,14], pad=[1,1]} : f32[2,32,14,14]
    %dw = conv2d_grad_weight(%x, %y) {pad=[1,1], weight_shape=[64,32,3,3]} : f32[64,32,3,3]
    %r = relu(%dx) : f32[2,32,14,14]
    return %y as "y", %z as "z", %dw as "dw", %r as "r"
  })";

class ConvolutionTest : public testing::Test {
 protected:
  const Node& At(size_t i) const { return *graph_->nodes()[i]; }

  std::unique_ptr<Graph> graph_ = test::ParseOrDie(kConvolutions);
};

TEST_F(ConvolutionTest, TensorsAreThoseOfTheForwardConvolution) {
  const Shape x{2, 32, 14, 14}, weight{64, 32, 3, 3}, y{2, 64, 14, 14};
  const ConvKind kinds[] = {ConvKind::kForward, ConvKind::kGradInput,
                            ConvKind::kGradWeight};
  const size_t nodes[] = {0, 2, 3};
  for (size_t i = 0; i < 3; ++i) {
    const auto conv = ConvolutionOf(At(nodes[i]));
    ASSERT_TRUE(conv.has_value());
    EXPECT_EQ(conv->kind, kinds[i]);
    EXPECT_EQ(conv->x.shape, x);
    EXPECT_EQ(conv->weight.shape, weight);
    EXPECT_EQ(conv->y.shape, y);
  }
  EXPECT_FALSE(ConvolutionOf(At(4)).has_value());
}

TEST_F(ConvolutionTest, AProblemIsALineWithoutDtypes) {
  EXPECT_EQ(LibraryProblem(At(0)),
            "conv2d x=2x32x14x14 w=64x32x3x3 stride=1,1 pad=1,1 dilation=1,1 "
            "groups=1");
  EXPECT_EQ(LibraryProblem(At(3)),
            "conv2d_grad_weight x=2x32x14x14 w=64x32x3x3 stride=1,1 pad=1,1 "
            "dilation=1,1 groups=1");
  EXPECT_EQ(LibraryProblem(At(4)), "");
}

TEST(LibraryProblem, OfAMatmulNamesItsOperands) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %a = data : f16[4,64,32]
    %b = data : f16[4,128,32]
    %y = matmul(%a, %b) {transpose_b=true} : f16[4,64,128]
    return %y as "y"
  })");
  EXPECT_EQ(LibraryProblem(*graph->nodes()[0]),
            "matmul a=4x64x32 b=4x128x32 transpose=0,1");
}

TEST_F(ConvolutionTest, WinogradIsForThreeByThreeWithStrideOne) {
  EXPECT_TRUE(HasWinogradGeometry(At(0)));
  EXPECT_FALSE(HasWinogradGeometry(At(1)));
  EXPECT_TRUE(HasWinogradGeometry(At(2)));
  EXPECT_TRUE(HasWinogradGeometry(At(3)));
  EXPECT_FALSE(HasWinogradGeometry(At(4)));
}

TEST_F(ConvolutionTest, WinogradIsModelledByItsProductsAndItsBytes) {
  Target target = FindTarget("cpu-avx512");
  target.peak_gflops_f32 = 100;
  target.winograd_efficiency = 0.5;
  EXPECT_EQ(DirectNs(At(0), target),
            static_cast<int64_t>(2 * NodeMacs(At(0)) / 100));
  // The 14x14 results of 2 images have 4x4 tiles each.
  target.memory_gb_per_s = 1e9;
  EXPECT_EQ(WinogradNs(At(0), target), 2 * 36 * 2 * 16 * 32 * 64 / 50);
  target.peak_gflops_f32 = 1e12;
  target.memory_gb_per_s = 1;
  const int64_t elements = 2 * 14 * 14 * (32 + 64);
  const int64_t weights = 2 * 36 * 32 * 64;
  EXPECT_EQ(WinogradNs(At(0), target), elements * 13 + 4 * weights);
  EXPECT_EQ(WinogradNs(At(3), target), elements * 22 + 4 * weights);
}

TEST_F(ConvolutionTest, WinogradIn16BitHasSmallerTilesThatStayInACache) {
  std::string text = kConvolutions;
  for (size_t at; (at = text.find("f32")) != std::string::npos;) {
    text.replace(at, 3, "bf16");
  }
  const auto graph = test::ParseOrDie(text);
  const Node& forward = *graph->nodes()[0];
  const Node& grad_weight = *graph->nodes()[3];
  Target target = FindTarget("cpu-avx512");
  target.peak_gflops_16 = 100;
  target.winograd_efficiency = 0.5;
  // The 14x14 results of 2 images have 7x7 tiles of 2x2 each.
  target.memory_gb_per_s = 1e9;
  EXPECT_EQ(WinogradNs(forward, target), 2 * 16 * 2 * 49 * 32 * 64 / 50);
  target.peak_gflops_16 = 1e12;
  target.memory_gb_per_s = 1;
  const int64_t elements = 2 * 14 * 14 * (32 + 64);
  const int64_t weights = 2 * 16 * 32 * 64;
  EXPECT_EQ(WinogradNs(forward, target), 2 * (elements + weights));
  EXPECT_EQ(WinogradNs(grad_weight, target), 2 * (elements + weights));
}

}  // namespace
}  // namespace fusor::ir
