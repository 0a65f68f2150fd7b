#include <gtest/gtest.h>

#include "passes/passes.h"
#include "tests/testing/graph_text.h"

namespace fusor::passes {
namespace {

// A library that runs convolutions in f32, by another kernel where a group's
// ReLU is asked for.
class EpilogueTarget final : public ir::TargetQueries {
 public:
  const ir::Target& target() const override { return target_; }
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    if (node.output()->type().dtype != ir::DType::kF32) return {};
    const bool slow =
        node.attrs().Int("groups") > 1 && node.attrs().Bool("relu");
    return {{.algorithm = "direct", .implementation = slow ? "ref" : "jit"}};
  }

 private:
  ir::Target target_ = ir::FindTarget("cpu-avx512");
};

class FuseConvEpilogueTest : public testing::Test {
 protected:
  bool Run(ir::Graph& graph) { return FuseConvEpilogue(graph, context_); }

  void ExpectKept(std::string_view text, std::string_view reason) {
    const auto graph = test::ParseOrDie(text);
    EXPECT_FALSE(Run(*graph));
    test::ExpectSameGraph(text, *graph);
    ASSERT_EQ(context_.decisions().size(), 1u);
    EXPECT_FALSE(context_.decisions()[0].accepted);
    EXPECT_EQ(context_.decisions()[0].reason, reason);
    EXPECT_EQ(context_.counters().at("conv_relu"), 0);
  }

  EpilogueTarget target_;
  PassContext context_{target_, {}};
};

TEST_F(FuseConvEpilogueTest, TakesAReluAndItsGradient) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[1,2,4,4]
      %w = weight : f32[3,2,1,1]
      %bias = bias : f32[3]
      %dy = data : f32[1,3,4,4]
      %conv = conv2d(%x, %w, %bias) : f32[1,3,4,4] @"features.0"
      %y = relu(%conv) : f32[1,3,4,4] @"features.1"
      %zero = constant() {dtype="f32", shape=[1,3,4,4], value=[0.0]}
            : f32[1,3,4,4]
      %on = compare(%y, %zero) {direction="gt"} : bool[1,3,4,4]
      %dx = select(%on, %dy, %zero) : f32[1,3,4,4]
      return %y as "y", %dx as "dx"
    })");
  EXPECT_TRUE(Run(*graph));
  test::ExpectSameGraph(R"(graph g {
      %x = data : f32[1,2,4,4]
      %w = weight : f32[3,2,1,1]
      %bias = bias : f32[3]
      %dy = data : f32[1,3,4,4]
      %y = conv2d(%x, %w, %bias) {relu=true} : f32[1,3,4,4] @"features.0"
      %zero = constant() {dtype="f32", shape=[1,3,4,4], value=[0.0]}
            : f32[1,3,4,4]
      %on = compare(%y, %zero) {direction="gt"} : bool[1,3,4,4]
      %dx = select(%on, %dy, %zero) : f32[1,3,4,4]
      return %y as "y", %dx as "dx"
    })",
                        *graph, test::Names::kCompare);
  EXPECT_EQ(context_.counters().at("conv_relu"), 1);
  EXPECT_FALSE(Run(*graph));
}

TEST_F(FuseConvEpilogueTest, LeavesAConvolutionWithOtherReaders) {
  ExpectKept(R"(graph g {
      %x = data : f32[1,2,4,4]
      %w = weight : f32[3,2,1,1]
      %conv = conv2d(%x, %w) : f32[1,3,4,4]
      %y = relu(%conv) : f32[1,3,4,4]
      %z = neg(%conv) : f32[1,3,4,4]
      return %y as "y", %z as "z"
    })",
             "conv has other uses");
}

TEST_F(FuseConvEpilogueTest, LeavesAConvolutionThatIsAnOutput) {
  ExpectKept(R"(graph g {
      %x = data : f32[1,2,4,4]
      %w = weight : f32[3,2,1,1]
      %conv = conv2d(%x, %w) : f32[1,3,4,4]
      %y = relu(%conv) : f32[1,3,4,4]
      return %y as "y", %conv as "z"
    })",
             "conv has other uses");
}

TEST_F(FuseConvEpilogueTest, LeavesWhatTheLibraryLacks) {
  ExpectKept(R"(graph g {
      %x = data : f64[1,2,4,4]
      %w = weight : f64[3,2,1,1]
      %conv = conv2d(%x, %w) : f64[1,3,4,4]
      %y = relu(%conv) : f64[1,3,4,4]
      return %y as "y"
    })",
             "the library has no such convolution with a ReLU");
}

TEST_F(FuseConvEpilogueTest, LeavesWhatTheLibraryDoesByAnotherKernel) {
  ExpectKept(R"(graph g {
      %x = data : f32[1,4,4,4]
      %w = weight : f32[2,2,1,1]
      %conv = conv2d(%x, %w) {groups=2} : f32[1,2,4,4]
      %y = relu(%conv) : f32[1,2,4,4]
      return %y as "y"
    })",
             "the library has no such convolution with a ReLU");
}

TEST_F(FuseConvEpilogueTest, TakesOneOfTwoRelusInARow) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[1,2,4,4]
      %w = weight : f32[3,2,1,1]
      %conv = conv2d(%x, %w) : f32[1,3,4,4]
      %y = relu(%conv) : f32[1,3,4,4]
      %z = relu(%y) : f32[1,3,4,4]
      return %z as "z"
    })");
  EXPECT_TRUE(Run(*graph));
  test::ExpectSameGraph(R"(graph g {
      %x = data : f32[1,2,4,4]
      %w = weight : f32[3,2,1,1]
      %y = conv2d(%x, %w) {relu=true} : f32[1,3,4,4]
      %z = relu(%y) : f32[1,3,4,4]
      return %z as "z"
    })",
                        *graph);
}

TEST_F(FuseConvEpilogueTest, StopsWhenOutOfFuel) {
  PassOptions options;
  options.fuel["fuse_conv_epilogue"] = 0;
  PassContext context(target_, options);
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[1,2,4,4]
      %w = weight : f32[3,2,1,1]
      %conv = conv2d(%x, %w) : f32[1,3,4,4]
      %y = relu(%conv) : f32[1,3,4,4]
      return %y as "y"
    })");
  EXPECT_FALSE(FuseConvEpilogue(*graph, context));
}

}  // namespace
}  // namespace fusor::passes
