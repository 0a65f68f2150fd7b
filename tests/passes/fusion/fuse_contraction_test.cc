#include <gtest/gtest.h>

#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/verifier.h"
#include "passes/fusion/contraction.h"
#include "passes/passes.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/modelled_library.h"

namespace fusor::passes {
namespace {

// A normalisation of %y with ReLU, read by a 1x1 convolution and its weight
// gradient.
constexpr char kNormalised[] = R"(graph g {
      %y = data : f32[16,64,56,56]{aBcd8b}
      %dy = data : f32[16,256,56,56]{aBcd8b}
      %scale = data : f32[64]
      %w = weight : f32[256,64,1,1]
      %s = broadcast(%scale) {dims=[1], shape=[16,64,56,56]}
         : f32[16,64,56,56]{aBcd8b}
      %n = mul(%y, %s) : f32[16,64,56,56]{aBcd8b} @"bn"
      %x = relu(%n) : f32[16,64,56,56]{aBcd8b} @"relu"
      %z = conv2d(%x, %w) : f32[16,256,56,56]{aBcd8b} @"conv"
      %dw = conv2d_grad_weight(%x, %dy) {weight_shape=[256,64,1,1]}
          : f32[256,64,1,1]{ABcd8b8a} @"conv"
      return %z as "z", %dw as "dw"
    })";

class FuseContractionTest : public testing::Test {
 protected:
  explicit FuseContractionTest(
      const ir::Target& target = ir::FindTarget("cpu-avx2"))
      : library_(target) {}

  // Runs the pass and expects kernels that can be generated. Returns the
  // decision on each product.
  std::vector<Decision> Run(ir::Graph& graph, const PassOptions& options = {}) {
    PassContext context(library_, options);
    FuseContraction(graph, context);
    ir::Verify(graph);
    for (const auto& node : graph.nodes()) {
      if (node->kind() != ir::OpKind::kFusion) continue;
      std::string reason;
      EXPECT_TRUE(AnalyzeContraction(*node->body(), &reason).has_value())
          << reason;
    }
    counters_ = context.counters();
    return context.decisions();
  }

  test::ModelledLibrary library_;
  std::map<std::string, int64_t> counters_;
};

TEST_F(FuseContractionTest, AllReadersComputeTheFactor) {
  const auto graph = test::ParseOrDie(kNormalised);
  const auto decisions = Run(*graph);
  test::ExpectSameGraph(R"(graph g {
      %y = data : f32[16,64,56,56]{aBcd8b}
      %dy = data : f32[16,256,56,56]{aBcd8b}
      %scale = data : f32[64]
      %w = weight : f32[256,64,1,1]
      %z = fusion(%scale, %y, %w) {rounding="fast"}
         : f32[16,256,56,56]{aBcd8b} @"conv" {
        %scale = data : f32[64]
        %y = data : f32[16,64,56,56]{aBcd8b}
        %w = data : f32[256,64,1,1]
        %s = broadcast(%scale) {dims=[1], shape=[16,64,56,56]}
           : f32[16,64,56,56]{aBcd8b}
        %n = mul(%y, %s) : f32[16,64,56,56]{aBcd8b} @"bn"
        %x = relu(%n) : f32[16,64,56,56]{aBcd8b} @"relu"
        %z = conv2d(%x, %w) : f32[16,256,56,56]{aBcd8b} @"conv"
        return %z as "z"
      }
      %dw = fusion(%scale, %y, %dy) {rounding="fast"}
          : f32[256,64,1,1]{ABcd8b8a} @"conv" {
        %scale = data : f32[64]
        %y = data : f32[16,64,56,56]{aBcd8b}
        %dy = data : f32[16,256,56,56]{aBcd8b}
        %s = broadcast(%scale) {dims=[1], shape=[16,64,56,56]}
           : f32[16,64,56,56]{aBcd8b}
        %n = mul(%y, %s) : f32[16,64,56,56]{aBcd8b} @"bn"
        %x = relu(%n) : f32[16,64,56,56]{aBcd8b} @"relu"
        %dw = conv2d_grad_weight(%x, %dy) {weight_shape=[256,64,1,1]}
            : f32[256,64,1,1]{ABcd8b8a} @"conv"
        return %dw as "dw"
      }
      return %z as "z", %dw as "dw"
    })",
                        *graph);
  ASSERT_EQ(decisions.size(), 2);
  EXPECT_EQ(decisions[0].reason, "one kernel with producers");
  // Together: a convolution alone would not be worth while.
  EXPECT_LT(decisions[0].saved_ns, 0);
  EXPECT_GT(decisions[0].saved_ns + decisions[1].saved_ns, 0);
  EXPECT_EQ(counters_["contractions"], 2);
  EXPECT_EQ(counters_["contraction_prologues"], 2);
}

TEST_F(FuseContractionTest, AnotherReaderKeepsTheFactor) {
  std::string text = kNormalised;
  text.insert(text.rfind(" as \"dw\"") + 8, ", %x as \"x\"");
  const auto graph = test::ParseOrDie(text);
  const auto decisions = Run(*graph);
  ASSERT_EQ(decisions.size(), 2);
  EXPECT_FALSE(decisions[0].accepted);
  EXPECT_EQ(decisions[0].reason,
            "the library is estimated to be faster; %x has other readers");
  EXPECT_EQ(decisions[1].reason, "one kernel");
  EXPECT_EQ(counters_["contraction_prologues"], 0);
}

TEST_F(FuseContractionTest, TakesTheReadersOfTheResult) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[16,64,56,56]{aBcd8b}
      %w = weight : f32[64,64,1,1]
      %scale = data : f32[64]
      %old = data : f32[16,64,56,56]{aBcd8b}
      %z = conv2d(%x, %w) : f32[16,64,56,56]{aBcd8b} @"conv"
      %s = broadcast(%scale) {dims=[1], shape=[16,64,56,56]}
         : f32[16,64,56,56]{aBcd8b}
      %n = mul(%z, %s) : f32[16,64,56,56]{aBcd8b} @"bn"
      %sum = add(%n, %old) : f32[16,64,56,56]{aBcd8b} @"add"
      %y = relu(%sum) : f32[16,64,56,56]{aBcd8b} @"relu"
      return %y as "y"
    })");
  const auto decisions = Run(*graph);
  test::ExpectSameGraph(R"(graph g {
      %x = data : f32[16,64,56,56]{aBcd8b}
      %w = weight : f32[64,64,1,1]
      %scale = data : f32[64]
      %old = data : f32[16,64,56,56]{aBcd8b}
      %y = fusion(%x, %w, %scale, %old) {rounding="fast"}
         : f32[16,64,56,56]{aBcd8b} @"conv" {
        %x = data : f32[16,64,56,56]{aBcd8b}
        %w = data : f32[64,64,1,1]
        %scale = data : f32[64]
        %old = data : f32[16,64,56,56]{aBcd8b}
        %z = conv2d(%x, %w) : f32[16,64,56,56]{aBcd8b} @"conv"
        %s = broadcast(%scale) {dims=[1], shape=[16,64,56,56]}
           : f32[16,64,56,56]{aBcd8b}
        %n = mul(%z, %s) : f32[16,64,56,56]{aBcd8b} @"bn"
        %sum = add(%n, %old) : f32[16,64,56,56]{aBcd8b} @"add"
        %y = relu(%sum) : f32[16,64,56,56]{aBcd8b} @"relu"
        return %y as "y"
      }
      return %y as "y"
    })",
                        *graph);
  ASSERT_EQ(decisions.size(), 1);
  EXPECT_EQ(decisions[0].reason, "one kernel with consumers");
  EXPECT_EQ(counters_["contraction_epilogues"], 1);
}

// Generated weight gradients are faster, unless their results are large.
TEST_F(FuseContractionTest, DependsOnTheDirection) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[16,512,14,14]{aBcd8b}
      %dy = data : f32[16,256,14,14]{aBcd8b}
      %dz = data : f32[16,2048,14,14]{aBcd8b}
      %w = weight : f32[256,512,1,1]
      %small = conv2d_grad_weight(%x, %dy) {weight_shape=[256,512,1,1]}
             : f32[256,512,1,1]{ABcd8b8a} @"a"
      %large = conv2d_grad_weight(%x, %dz) {weight_shape=[2048,512,1,1]}
             : f32[2048,512,1,1]{ABcd8b8a} @"b"
      %dx = conv2d_grad_input(%dy, %w) {input_shape=[16,512,14,14]}
          : f32[16,512,14,14]{aBcd8b} @"a"
      return %small as "small", %large as "large", %dx as "dx"
    })");
  const auto decisions = Run(*graph);
  ASSERT_EQ(decisions.size(), 3);
  EXPECT_TRUE(decisions[0].accepted);
  EXPECT_FALSE(decisions[1].accepted);
  EXPECT_FALSE(decisions[2].accepted);
}

// General fusion computes the ReLU in the kernel of the sum.
TEST_F(FuseContractionTest, LeavesReadersToOtherKernels) {
  const char* text = R"(graph g {
      %x = data : f32[16,64,56,56]{aBcd8b}
      %w = weight : f32[64,64,1,1]
      %z = conv2d(%x, %w) : f32[16,64,56,56]{aBcd8b} @"conv"
      %y = relu(%z) : f32[16,64,56,56]{aBcd8b} @"relu"
      %sum = reduce(%y) {dims=[0,2,3], kind="sum"} : f32[64] @"sum"
      return %sum as "sum"
    })";
  const auto graph = test::ParseOrDie(text);
  const auto decisions = Run(*graph);
  test::ExpectSameGraph(text, *graph);
  ASSERT_EQ(decisions.size(), 1);
  EXPECT_EQ(decisions[0].reason, "the library is estimated to be faster");
}

TEST_F(FuseContractionTest, TakesWhatTheLibraryLacks) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f64[32,100]
      %w = weight : f64[50,100]
      %y = matmul(%x, %w) {transpose_b=true} : f64[32,50] @"fc"
      return %y as "y"
    })");
  const auto decisions = Run(*graph);
  ASSERT_EQ(decisions.size(), 1);
  EXPECT_TRUE(decisions[0].accepted);
  EXPECT_EQ(decisions[0].reason, "one kernel");
}

TEST_F(FuseContractionTest, StatesWhyConvolutionsAreNone) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[2,8,9,9]
      %w = weight : f32[8,8,3,3]
      %v = weight : f32[8,4,1,1]
      %y = conv2d(%x, %w) {pad=[1,1]} : f32[2,8,9,9] @"a"
      %z = conv2d(%y, %v) {groups=2} : f32[2,8,9,9] @"b"
      return %z as "z"
    })");
  const auto decisions = Run(*graph);
  ASSERT_EQ(decisions.size(), 2);
  EXPECT_EQ(decisions[0].reason, "its filters are larger than 1x1");
  EXPECT_EQ(decisions[1].reason, "its channels are in groups");
}

// Both readers of a dropout must see the same random numbers.
TEST_F(FuseContractionTest, RandomNumbersAreDrawnOnce) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f64[32,100]
      %v = weight : f64[100,50]
      %w = weight : f64[100,50]
      %key = hyper_parameter : i64[]
      %step = hyper_parameter : i32[]
      %r = random(%key, %step) {shape=[32,100], site=0} : f32[32,100]
      %c = cast(%r) {dtype="f64"} : f64[32,100]
      %d = mul(%x, %c) : f64[32,100]
      %y = matmul(%d, %v) : f64[32,50]
      %z = matmul(%d, %w) : f64[32,50]
      return %y as "y", %z as "z"
    })");
  const auto decisions = Run(*graph);
  ASSERT_EQ(decisions.size(), 2);
  EXPECT_TRUE(decisions[0].accepted);
  EXPECT_EQ(std::count_if(graph->nodes().begin(), graph->nodes().end(),
                          [](const auto& node) {
                            return node->kind() == ir::OpKind::kRandom;
                          }),
            1);
}

// The factors have different index maps, so a kernel cannot compute their
// common operands.
TEST_F(FuseContractionTest, FactorsDoNotShareAProducer) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f64[100,100]
      %b = data : f64[100,100]
      %t = tanh(%x) : f64[100,100]
      %y = matmul(%t, %t) {transpose_b=true} : f64[100,100]
      %u = exp(%x) : f64[100,100]
      %v = mul(%u, %b) : f64[100,100]
      %z = matmul(%v, %u) {transpose_b=true} : f64[100,100]
      return %y as "y", %z as "z"
    })");
  const auto decisions = Run(*graph);
  ASSERT_EQ(decisions.size(), 2);
  EXPECT_EQ(decisions[0].reason, "one kernel");
  EXPECT_EQ(decisions[1].reason, "one kernel");
}

TEST_F(FuseContractionTest, EagerRoundingKeepsTheLibrary) {
  const auto graph = test::ParseOrDie(kNormalised);
  const auto decisions = Run(*graph, {.eager_rounding = true});
  ASSERT_EQ(decisions.size(), 2);
  EXPECT_EQ(decisions[0].reason,
            "with eager rounding, fusion must not change sums");
}

TEST_F(FuseContractionTest, FuelLimitsThePass) {
  PassOptions options;
  options.fuel["fuse_contraction"] = 1;
  const auto graph = test::ParseOrDie(kNormalised);
  const auto decisions = Run(*graph, options);
  ASSERT_EQ(decisions.size(), 2);
  EXPECT_TRUE(decisions[0].accepted);
  EXPECT_EQ(decisions[1].reason, "out of fuel");
}

TEST_F(FuseContractionTest, IsOffWhereItWasNotMeasured) {
  for (const char* name : {"cpu-avx512", "nvidia-h200"}) {
    const auto graph = test::ParseOrDie(kNormalised);
    const test::ModelledLibrary library(ir::FindTarget(name));
    PassContext context(library, {});
    EXPECT_FALSE(FuseContraction(*graph, context)) << name;
  }
}

// On a GPU, what the layout pass chose is fused. The gradient's kernel adds a
// residual; the library's convolution stays.
constexpr char kTensorCores[] = R"(graph g {
      %y = data : f16[16,64,56,56]{acdb}
      %dy = data : f16[16,256,56,56]{acdb}
      %r = data : f16[16,64,56,56]{acdb}
      %scale = data : f16[64]
      %w = weight : f16[256,64,1,1]{acdb}
      %s = broadcast(%scale) {dims=[1], shape=[16,64,56,56]}
         : f16[16,64,56,56]{acdb}
      %n = mul(%y, %s) : f16[16,64,56,56]{acdb} @"bn"
      %x = relu(%n) : f16[16,64,56,56]{acdb} @"relu"
      %z = conv2d(%x, %w) {algorithm="generated"}
         : f16[16,256,56,56]{acdb} @"conv"
      %dw = conv2d_grad_weight(%x, %dy)
          {weight_shape=[256,64,1,1], algorithm="generated"}
          : f16[256,64,1,1]{acdb} @"conv"
      %dx = conv2d_grad_input(%dy, %w)
          {input_shape=[16,64,56,56], algorithm="generated"}
          : f16[16,64,56,56]{acdb} @"conv"
      %sum = add(%dx, %r) : f16[16,64,56,56]{acdb} @"add"
      return %z as "z", %dw as "dw", %sum as "sum"
    })";

class FuseTensorCoreTest : public FuseContractionTest {
 protected:
  FuseTensorCoreTest() : FuseContractionTest(ir::FindTarget("nvidia-h200")) {}
};

TEST_F(FuseTensorCoreTest, ChosenKernelsComputeTheirNeighbours) {
  const auto graph = test::ParseOrDie(kTensorCores);
  const auto decisions = Run(*graph);
  test::ExpectSameGraph(R"(graph g {
      %y = data : f16[16,64,56,56]{acdb}
      %dy = data : f16[16,256,56,56]{acdb}
      %r = data : f16[16,64,56,56]{acdb}
      %scale = data : f16[64]
      %w = weight : f16[256,64,1,1]{acdb}
      %z = fusion(%scale, %y, %w) {rounding="fast"}
         : f16[16,256,56,56]{acdb} @"conv" {
        %scale = data : f16[64]
        %y = data : f16[16,64,56,56]{acdb}
        %w = data : f16[256,64,1,1]{acdb}
        %s = broadcast(%scale) {dims=[1], shape=[16,64,56,56]}
           : f16[16,64,56,56]{acdb}
        %n = mul(%y, %s) : f16[16,64,56,56]{acdb} @"bn"
        %x = relu(%n) : f16[16,64,56,56]{acdb} @"relu"
        %z = conv2d(%x, %w) {algorithm="generated"}
           : f16[16,256,56,56]{acdb} @"conv"
        return %z as "z"
      }
      %dw = fusion(%scale, %y, %dy) {rounding="fast"}
          : f16[256,64,1,1]{acdb} @"conv" {
        %scale = data : f16[64]
        %y = data : f16[16,64,56,56]{acdb}
        %dy = data : f16[16,256,56,56]{acdb}
        %s = broadcast(%scale) {dims=[1], shape=[16,64,56,56]}
           : f16[16,64,56,56]{acdb}
        %n = mul(%y, %s) : f16[16,64,56,56]{acdb} @"bn"
        %x = relu(%n) : f16[16,64,56,56]{acdb} @"relu"
        %dw = conv2d_grad_weight(%x, %dy)
            {weight_shape=[256,64,1,1], algorithm="generated"}
            : f16[256,64,1,1]{acdb} @"conv"
        return %dw as "dw"
      }
      %sum = fusion(%dy, %w, %r) {rounding="fast"}
           : f16[16,64,56,56]{acdb} @"conv" {
        %dy = data : f16[16,256,56,56]{acdb}
        %w = data : f16[256,64,1,1]{acdb}
        %r = data : f16[16,64,56,56]{acdb}
        %dx = conv2d_grad_input(%dy, %w)
            {input_shape=[16,64,56,56], algorithm="generated"}
            : f16[16,64,56,56]{acdb} @"conv"
        %sum = add(%dx, %r) : f16[16,64,56,56]{acdb} @"add"
        return %sum as "sum"
      }
      return %z as "z", %dw as "dw", %sum as "sum"
    })",
                        *graph);
  EXPECT_EQ(decisions.size(), 3);
  EXPECT_EQ(counters_["contraction_prologues"], 2);
  EXPECT_EQ(counters_["contraction_epilogues"], 1);
}

// A matmul's kernel adds the bias and the residual, and multiplies with what it
// normalises. Library calls would add only the bias.
TEST_F(FuseTensorCoreTest, ChosenMatmulsComputeTheirNeighbours) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f16[512,64]
      %scale = data : f16[64]
      %w = weight : f16[128,64]
      %bias = weight : f16[128]
      %r = data : f16[512,128]
      %s = broadcast(%scale) {dims=[1], shape=[512,64]} : f16[512,64]
      %n = mul(%x, %s) : f16[512,64]
      %p = matmul(%n, %w) {transpose_b=true, algorithm="generated"}
         : f16[512,128] @"fc"
      %b = broadcast(%bias) {dims=[1], shape=[512,128]} : f16[512,128]
      %q = add(%p, %b) : f16[512,128]
      %y = add(%q, %r) : f16[512,128]
      return %y as "y"
    })");
  Run(*graph);
  ASSERT_EQ(graph->nodes().size(), 1);
  EXPECT_EQ(ir::FusedOps(*graph->nodes()[0]->body()), "mul,matmul,add,add");
}

// The sum %unread is not computed.
TEST_F(FuseTensorCoreTest, KernelsOfLibraryFusionsComputeTheirFactors) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %y = data : f16[16,64,56,56]{acdb}
      %dy = data : f16[16,256,56,56]{acdb}
      %w = weight : f16[256,64,1,1]{acdb}
      %x = relu(%y) : f16[16,64,56,56]{acdb} @"relu"
      %z, %sum, %unread = fusion(%x, %w) {kind="library"}
          : f16[16,256,56,56]{acdb}, f32[256], f32[256] @"conv" {
        %x = data : f16[16,64,56,56]{acdb}
        %w = data : f16[256,64,1,1]{acdb}
        %z = conv2d(%x, %w) {algorithm="generated"}
           : f16[16,256,56,56]{acdb}
        %wide = cast(%z) {dtype="f32"} : f32[16,256,56,56]{acdb}
        %sum = reduce(%wide) {dims=[0,2,3], kind="sum"} : f32[256]
        %square = mul(%wide, %wide) : f32[16,256,56,56]{acdb}
        %unread = reduce(%square) {dims=[0,2,3], kind="sum"} : f32[256]
        return %z as "z", %sum as "sum", %unread as "unread"
      }
      %dw = conv2d_grad_weight(%x, %dy)
          {weight_shape=[256,64,1,1], algorithm="generated"}
          : f16[256,64,1,1]{acdb} @"conv"
      return %z as "z", %sum as "sum", %dw as "dw"
    })");
  Run(*graph);
  test::ExpectSameGraph(R"(graph g {
      %y = data : f16[16,64,56,56]{acdb}
      %dy = data : f16[16,256,56,56]{acdb}
      %w = weight : f16[256,64,1,1]{acdb}
      %z, %sum = fusion(%y, %w) {rounding="fast"}
          : f16[16,256,56,56]{acdb}, f32[256] @"conv" {
        %y = data : f16[16,64,56,56]{acdb}
        %w = data : f16[256,64,1,1]{acdb}
        %x = relu(%y) : f16[16,64,56,56]{acdb} @"relu"
        %z = conv2d(%x, %w) {algorithm="generated"}
           : f16[16,256,56,56]{acdb} @"conv"
        %wide = cast(%z) {dtype="f32"} : f32[16,256,56,56]{acdb} @"conv"
        %sum = reduce(%wide) {dims=[0,2,3], kind="sum"} : f32[256] @"conv"
        return %z as "z", %sum as "sum"
      }
      %dw = fusion(%y, %dy) {rounding="fast"}
          : f16[256,64,1,1]{acdb} @"conv" {
        %y = data : f16[16,64,56,56]{acdb}
        %dy = data : f16[16,256,56,56]{acdb}
        %x = relu(%y) : f16[16,64,56,56]{acdb} @"relu"
        %dw = conv2d_grad_weight(%x, %dy)
            {weight_shape=[256,64,1,1], algorithm="generated"}
            : f16[256,64,1,1]{acdb} @"conv"
        return %dw as "dw"
      }
      return %z as "z", %sum as "sum", %dw as "dw"
    })",
                        *graph);
  EXPECT_EQ(counters_["contraction_prologues"], 2);
}

TEST_F(FuseTensorCoreTest, LibraryCallsStay) {
  std::string text = kTensorCores;
  for (size_t at; (at = text.find("generated")) != std::string::npos;) {
    text.replace(at, 9, "eng1");
  }
  const auto graph = test::ParseOrDie(text);
  EXPECT_TRUE(Run(*graph).empty());
  test::ExpectSameGraph(text, *graph);
}

}  // namespace
}  // namespace fusor::passes
