#include <gtest/gtest.h>

#include "ir/support/error.h"
#include "ir/verifier.h"
#include "ir/weight_copy.h"
#include "passes/passes.h"
#include "passes/pipeline.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"

namespace fusor::passes {
namespace {

class KeepWeightCopiesTest : public testing::Test {
 protected:
  std::unique_ptr<ir::Graph> Run(std::string_view text) {
    auto graph = test::ParseOrDie(text);
    PassContext context(target_, options_);
    changed_ = CacheWeightCasts(*graph, context);
    counters_ = context.counters();
    ir::Verify(*graph);
    return graph;
  }

  void Expect(std::string_view before, std::string_view after) {
    const auto graph = Run(before);
    EXPECT_TRUE(changed_);
    test::ExpectSameGraph(after, *graph);
    PassContext again(target_, options_);
    EXPECT_FALSE(CacheWeightCasts(*graph, again));
  }

  void ExpectNothing(std::string_view text) {
    const auto graph = Run(text);
    EXPECT_FALSE(changed_);
    test::ExpectSameGraph(text, *graph);
  }

  test::BareTarget target_;
  PassOptions options_;
  bool changed_ = false;
  std::map<std::string, int64_t> counters_;
};

// A matmul reads a weight unpacked, a convolution reads it packed, and the
// convolution's gradient reads it packed in another layout.
constexpr char kStep[] = R"(graph g {
    %x = data : bf16[1,16,1,1]
    %w = weight : f32[16,16,1,1]{ABcd16b16a}
    %g = data : f32[16,16,1,1]{ABcd16b16a}
    %f = copy(%w) {layout="ABcd8b16a2b", result_dtype="bf16"} : bf16[16,16,1,1]{ABcd8b16a2b} @"c"
    %y = conv2d(%x, %f) : bf16[1,16,1,1] @"c"
    %b = copy(%w) {layout="BAcd8a16b2a", result_dtype="bf16"} : bf16[16,16,1,1]{BAcd8a16b2a} @"c"
    %z = conv2d_grad_input(%y, %b) {input_shape=[1,16,1,1]} : bf16[1,16,1,1] @"c"
    %n = sub(%w, %g) : f32[16,16,1,1]{ABcd16b16a} @"c"
    return %z as "z", %n as "w" -> %w
  })";

constexpr char kKept[] = R"(graph g {
    %x = data : bf16[1,16,1,1]
    %w = weight : f32[16,16,1,1]{ABcd16b16a}
    %g = data : f32[16,16,1,1]{ABcd16b16a}
    %f = weight_copy {init="copy", of="w", rounding="bf16"} : bf16[16,16,1,1]{ABcd8b16a2b}
    %b = weight_copy {init="copy", of="w", rounding="bf16"} : bf16[16,16,1,1]{BAcd8a16b2a}
    %y = conv2d(%x, %f) : bf16[1,16,1,1] @"c"
    %z = conv2d_grad_input(%y, %b) {input_shape=[1,16,1,1]} : bf16[1,16,1,1] @"c"
    %n = sub(%w, %g) : f32[16,16,1,1]{ABcd16b16a} @"c"
    %nf = copy(%n) {layout="ABcd8b16a2b", result_dtype="bf16"} : bf16[16,16,1,1]{ABcd8b16a2b} @"c"
    %nb = copy(%n) {layout="BAcd8a16b2a", result_dtype="bf16"} : bf16[16,16,1,1]{BAcd8a16b2a} @"c"
    return %z as "z", %n as "w" -> %w,
      %nf as "copy.bf16.ABcd8b16a2b/w" -> %f,
      %nb as "copy.bf16.BAcd8a16b2a/w" -> %b
  })";

TEST_F(KeepWeightCopiesTest, KeepsOneCopyALayout) {
  Expect(kStep, kKept);
  EXPECT_EQ(counters_["weight_copies"], 2);
  // FuseUpdates moves the update's copies into its kernel later.
  EXPECT_EQ(counters_["weight_repacks"], 0);
}

TEST_F(KeepWeightCopiesTest, ACastIsACopyInTheWeightsLayout) {
  Expect(R"(graph g {
    %x = data : bf16[2,3]
    %w = weight : f32[4,3]
    %c = cast(%w) {dtype="bf16"} : bf16[4,3] @"fc"
    %y = matmul(%x, %c) {transpose_b=true} : bf16[2,4] @"fc"
    %z = matmul(%y, %c) : bf16[2,3] @"fc"
    %n = neg(%w) : f32[4,3] @"fc"
    return %z as "z", %n as "w" -> %w
  })",
         R"(graph g {
    %x = data : bf16[2,3]
    %w = weight : f32[4,3]
    %c = weight_copy {init="copy", of="w", rounding="bf16"} : bf16[4,3]
    %y = matmul(%x, %c) {transpose_b=true} : bf16[2,4] @"fc"
    %z = matmul(%y, %c) : bf16[2,3] @"fc"
    %n = neg(%w) : f32[4,3] @"fc"
    %nc = copy(%n) {layout="", result_dtype="bf16"} : bf16[4,3] @"fc"
    return %z as "z", %n as "w" -> %w, %nc as "copy.bf16/w" -> %c
  })");
}

TEST_F(KeepWeightCopiesTest, BiasesHaveCopiesToo) {
  Expect(R"(graph g {
    %x = data : f16[2,3,1,1]
    %w = data : f16[4,3,1,1]
    %bias = bias : f32[4]
    %c = cast(%bias) {dtype="f16"} : f16[4] @"c"
    %y = conv2d(%x, %w, %c) : f16[2,4,1,1] @"c"
    %n = neg(%bias) : f32[4] @"c"
    return %y as "y", %n as "bias" -> %bias
  })",
         R"(graph g {
    %x = data : f16[2,3,1,1]
    %w = data : f16[4,3,1,1]
    %bias = bias : f32[4]
    %c = weight_copy {init="copy", of="bias", rounding="f16"} : f16[4]
    %y = conv2d(%x, %w, %c) : f16[2,4,1,1] @"c"
    %n = neg(%bias) : f32[4] @"c"
    %nc = copy(%n) {layout="", result_dtype="f16"} : f16[4] @"c"
    return %y as "y", %n as "bias" -> %bias, %nc as "copy.f16/bias" -> %c
  })");
}

TEST_F(KeepWeightCopiesTest, ACopyIsWideWhereTheTargetMultipliesWide) {
  Expect(R"(graph g {
    %x = data : f32[2,3]
    %w = weight : f32[4,3]
    %h = cast(%w) {dtype="f16"} : f16[4,3] @"fc"
    %c = cast(%h) {dtype="f32"} : f32[4,3] @"fc"
    %y = matmul(%x, %c) {transpose_b=true} : f32[2,4] @"fc"
    %n = neg(%w) : f32[4,3] @"fc"
    return %y as "y", %n as "w" -> %w
  })",
         R"(graph g {
    %x = data : f32[2,3]
    %w = weight : f32[4,3]
    %c = weight_copy {init="copy", of="w", rounding="f16"} : f32[4,3]
    %y = matmul(%x, %c) {transpose_b=true} : f32[2,4] @"fc"
    %n = neg(%w) : f32[4,3] @"fc"
    %nh = copy(%n) {layout="", result_dtype="f16"} : f16[4,3] @"fc"
    %nc = copy(%nh) {layout="", result_dtype="f32"} : f32[4,3] @"fc"
    return %y as "y", %n as "w" -> %w, %nc as "copy.f16.f32/w" -> %c
  })");
}

// Fusions convert what they read. An f32 weight is stored in its final layout.
TEST_F(KeepWeightCopiesTest, LeavesOtherReadersAndWideWeights) {
  ExpectNothing(R"(graph g {
    %x = data : f32[1,3,1,1]
    %w = weight : f32[4,3,1,1]
    %p = copy(%w) {layout="bacd"} : f32[4,3,1,1]{bacd} @"c"
    %y = conv2d(%x, %p) : f32[1,4,1,1] @"c"
    %c = cast(%w) {dtype="bf16"} : bf16[4,3,1,1] @"c"
    %s = neg(%c) : bf16[4,3,1,1] @"c"
    %n = neg(%w) : f32[4,3,1,1] @"c"
    return %y as "y", %s as "s", %n as "w" -> %w
  })");
}

constexpr char kReader[] = R"(graph g {
    %x = data : bf16[2,3]
    %w = weight : f32[4,3]
    %c = cast(%w) {dtype="bf16"} : bf16[4,3] @"fc"
    %y = matmul(%x, %c) {transpose_b=true} : bf16[2,4] @"fc"
    return %y as "y"
  })";

TEST_F(KeepWeightCopiesTest, NobodyWouldWriteTheCopyOfAnEvaluation) {
  ExpectNothing(kReader);
}

TEST_F(KeepWeightCopiesTest, AProgramReadsTheCopiesThatStateHas) {
  options_.state_places["w"] = {};
  ExpectNothing(kReader);
  options_.state_places["copy.bf16/w"] = {{}, 64};
  Expect(kReader, R"(graph g {
    %x = data : bf16[2,3]
    %w = weight : f32[4,3]
    %c = weight_copy {init="copy", of="w", rounding="bf16"} : bf16[4,3]
    %y = matmul(%x, %c) {transpose_b=true} : bf16[2,4] @"fc"
    return %y as "y"
  })");
}

TEST_F(KeepWeightCopiesTest, AnUpdateWritesCopiesThatOthersRead) {
  options_.state_places["w"] = {};
  options_.state_places["copy.f16.f32.ba/w"] = {ir::ParseLayout("ba"), 64};
  Expect(R"(graph g {
    %w = weight : f32[4,3]
    %n = neg(%w) : f32[4,3] @"fc"
    return %n as "w" -> %w
  })",
         R"(graph g {
    %w = weight : f32[4,3]
    %c = weight_copy {init="copy", of="w", rounding="f16"} : f32[4,3]{ba}
    %n = neg(%w) : f32[4,3] @"fc"
    %nh = copy(%n) {layout="ba", result_dtype="f16"} : f16[4,3]{ba} @"fc"
    %nc = copy(%nh) {layout="ba", result_dtype="f32"} : f32[4,3]{ba} @"fc"
    return %n as "w" -> %w, %nc as "copy.f16.f32.ba/w" -> %c
  })");
}

TEST_F(KeepWeightCopiesTest, FuelLeavesTheRestAsItIs) {
  options_.fuel["cache_weight_casts"] = 1;
  const auto graph = Run(kStep);
  EXPECT_TRUE(changed_);
  EXPECT_EQ(counters_["weight_copies"], 1);
  EXPECT_NE(graph->FindInput("copy.bf16.ABcd8b16a2b/w"), nullptr);
  EXPECT_EQ(graph->FindInput("copy.bf16.BAcd8a16b2a/w"), nullptr);
}

// The update's kernel also writes the copies.
TEST_F(KeepWeightCopiesTest, TheUpdateWritesThemInItsLaunch) {
  auto graph = test::ParseOrDie(kKept);
  PassContext context(target_, options_);
  Fuse(*graph, context);
  EXPECT_TRUE(FuseUpdates(*graph, context));
  ir::Verify(*graph);
  test::ExpectSameGraph(R"(graph g {
    %x = data : bf16[1,16,1,1]
    %w = weight : f32[16,16,1,1]{ABcd16b16a}
    %g = data : f32[16,16,1,1]{ABcd16b16a}
    %f = weight_copy {init="copy", of="w", rounding="bf16"} : bf16[16,16,1,1]{ABcd8b16a2b}
    %b = weight_copy {init="copy", of="w", rounding="bf16"} : bf16[16,16,1,1]{BAcd8a16b2a}
    %y = conv2d(%x, %f) : bf16[1,16,1,1] @"c"
    %z = conv2d_grad_input(%y, %b) {input_shape=[1,16,1,1]} : bf16[1,16,1,1] @"c"
    %n, %nf, %nb = fusion(%w, %g) {copies_together=true, kind="multi_tensor"} : f32[16,16,1,1]{ABcd16b16a}, bf16[16,16,1,1]{ABcd8b16a2b}, bf16[16,16,1,1]{BAcd8a16b2a} @"optimizer" graph updates {
      %p = data : f32[16,16,1,1]{ABcd16b16a}
      %q = data : f32[16,16,1,1]{ABcd16b16a}
      %m = sub(%p, %q) : f32[16,16,1,1]{ABcd16b16a} @"c"
      %mf = copy(%m) {layout="ABcd8b16a2b", result_dtype="bf16"} : bf16[16,16,1,1]{ABcd8b16a2b} @"c"
      %mb = copy(%m) {layout="BAcd8a16b2a", result_dtype="bf16"} : bf16[16,16,1,1]{BAcd8a16b2a} @"c"
      return %m as "n", %mf as "nf", %mb as "nb"
    }
    return %z as "z", %n as "w" -> %w,
      %nf as "copy.bf16.ABcd8b16a2b/w" -> %f,
      %nb as "copy.bf16.BAcd8a16b2a/w" -> %b
  })",
                        *graph);
}

TEST(WeightCopyName, SaysWhatTheCopyHolds) {
  const ir::TensorType type{ir::DType::kF32, {16, 16}, ir::ParseLayout("ba")};
  const std::string name = ir::WeightCopyName("a.b/w", ir::DType::kF16, type);
  EXPECT_EQ(name, "copy.f16.f32.ba/a.b/w");
  const auto kind = ir::ParseWeightCopyName(name);
  ASSERT_TRUE(kind.has_value());
  EXPECT_EQ(kind->weight, "a.b/w");
  EXPECT_EQ(kind->rounding, ir::DType::kF16);
  EXPECT_EQ(kind->dtype, ir::DType::kF32);
  EXPECT_EQ(ir::ParseWeightCopyName("copy.bf16.ba/w")->dtype, ir::DType::kBF16);
  EXPECT_FALSE(ir::ParseWeightCopyName("momentum/w").has_value());
  EXPECT_FALSE(ir::ParseWeightCopyName("copy.x/w").has_value());
}

TEST(WeightCopy, TheVerifierWantsItsWeight) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %w = weight : f32[4,3]
    %y = neg(%w) : f32[4,3]
    return %y as "y"
  })");
  graph->AddInput({ir::DType::kBF16, {3, 4}, {}}, ir::InputRole::kWeightCopy,
                  "c", ir::WeightCopyAttrs("w", ir::DType::kBF16));
  EXPECT_THROW(ir::Verify(*graph), Error);
}

}  // namespace
}  // namespace fusor::passes
