#include <gtest/gtest.h>

#include <string>

#include "passes/passes.h"
#include "tests/testing/graph_text.h"

namespace fusor::passes {
namespace {

// A library without f16 pooling, which generated kernels compute.
class PoolingTarget final : public ir::TargetQueries {
 public:
  const ir::Target& target() const override { return target_; }
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    const bool leaves = node.attrs().Has("window") &&
                        node.input(0)->type().dtype == ir::DType::kF16;
    return {{.algorithm =
                 leaves ? std::string(ir::kGeneratedAlgorithm) : "direct"}};
  }

 private:
  ir::Target target_ = ir::FindTarget("nvidia-h200");
};

TEST(GenerateKernels, GivesWhatTheLibraryLeavesAFusionOfItsOwn) {
  const PoolingTarget target;
  PassContext context(target, {});
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f16[1,8,4,4]{acdb}
      %p, %i = max_pool(%x) {stride=[2,2], window=[2,2]}
             : f16[1,8,2,2]{acdb}, u8[1,8,2,2]{acdb} @"features.4"
      %dx = max_pool_grad(%p, %i)
            {input_shape=[1,8,4,4], stride=[2,2], window=[2,2]}
          : f16[1,8,4,4]{acdb} @"features.4"
      %q, %unread = max_pool(%dx) {stride=[2,2], window=[2,2]}
                  : f16[1,8,2,2]{acdb}, u8[1,8,2,2]{acdb}
      return %q as "q"
    })");
  EXPECT_TRUE(GenerateKernels(*graph, context));
  test::ExpectSameGraph(R"(graph g {
      %x = data : f16[1,8,4,4]{acdb}
      %p, %i = fusion(%x) {rounding="fast"}
             : f16[1,8,2,2]{acdb}, u8[1,8,2,2]{acdb} @"features.4" {
        %x = data : f16[1,8,4,4]{acdb}
        %p, %i = max_pool(%x) {stride=[2,2], window=[2,2]}
               : f16[1,8,2,2]{acdb}, u8[1,8,2,2]{acdb} @"features.4"
        return %p as "p", %i as "i"
      }
      %dx = fusion(%p, %i) {rounding="fast"}
          : f16[1,8,4,4]{acdb} @"features.4" {
        %p = data : f16[1,8,2,2]{acdb}
        %i = data : u8[1,8,2,2]{acdb}
        %dx = max_pool_grad(%p, %i)
              {input_shape=[1,8,4,4], stride=[2,2], window=[2,2]}
            : f16[1,8,4,4]{acdb} @"features.4"
        return %dx as "dx"
      }
      %q = fusion(%dx) {rounding="fast"} : f16[1,8,2,2]{acdb} {
        %dx = data : f16[1,8,4,4]{acdb}
        %q, %unread = max_pool(%dx) {stride=[2,2], window=[2,2]}
                    : f16[1,8,2,2]{acdb}, u8[1,8,2,2]{acdb}
        return %q as "q"
      }
      return %q as "q"
    })",
                        *graph);
  EXPECT_EQ(context.counters().at("generated_kernels"), 3);
}

// The layout pass left a convolution and the sums of its result to a kernel.
TEST(GenerateKernels, MakesLibraryFusionsKernels) {
  const PoolingTarget target;
  PassContext context(target, {});
  std::string text = R"(graph g {
      %x = data : f16[1,64,8,8]{acdb}
      %w = data : f16[64,64,1,1]{acdb}
      %y, %sum = fusion(%x, %w) {kind="library"}
               : f16[1,64,8,8]{acdb}, f32[64] @"conv" {
        %x = data : f16[1,64,8,8]{acdb}
        %w = data : f16[64,64,1,1]{acdb}
        %y = conv2d(%x, %w) {algorithm="generated"} : f16[1,64,8,8]{acdb}
        %wide = cast(%y) {dtype="f32"} : f32[1,64,8,8]{acdb}
        %sum = reduce(%wide) {dims=[0,2,3], kind="sum"} : f32[64]
        return %y as "y", %sum as "sum"
      }
      return %y as "y", %sum as "sum"
    })";
  const auto graph = test::ParseOrDie(text);
  EXPECT_TRUE(GenerateKernels(*graph, context));
  text.replace(text.find("\"library\""), 9, "\"loop\"");
  test::ExpectSameGraph(text, *graph);
  EXPECT_EQ(context.counters().at("generated_kernels"), 1);
}

TEST(GenerateKernels, LeavesWhatTheLibraryDoes) {
  const PoolingTarget target;
  PassContext context(target, {});
  const char* text = R"(graph g {
      %x = data : f32[1,8,4,4]{acdb}
      %w = weight : f32[8,8]
      %p, %i = max_pool(%x) {stride=[4,4], window=[4,4]}
             : f32[1,8,1,1]{acdb}, u8[1,8,1,1]{acdb}
      %v = data : f32[1,8]
      %y = matmul(%v, %w) : f32[1,8]
      return %y as "y", %p as "p", %i as "i"
    })";
  const auto graph = test::ParseOrDie(text);
  EXPECT_FALSE(GenerateKernels(*graph, context));
  test::ExpectSameGraph(text, *graph);
  EXPECT_FALSE(context.counters().contains("generated_kernels"));
}

}  // namespace
}  // namespace fusor::passes
