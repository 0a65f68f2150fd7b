#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/interpreter/interpreter.h"
#include "ir/library_fusion.h"
#include "passes/passes.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/random_graph.h"

namespace fusor::passes {
namespace {

// --- Convolutions ------------------------------------------------------------

// A library with f32 convolutions. With a ReLU, grouped convolutions use
// another implementation, and it has no channels_last.
class ConvTarget final : public ir::TargetQueries {
 public:
  const ir::Target& target() const override { return target_; }
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    if (node.output()->type().dtype != ir::DType::kF32) return {};
    const bool relu = ir::IsLibraryFusion(node);
    const bool slow = ir::LibraryOp(node).attrs().Int("groups") > 1 && relu;
    ir::LibraryCandidate direct{.algorithm = "direct",
                                .implementation = slow ? "ref" : "jit"};
    direct.operands.resize(node.num_inputs());
    direct.results.resize(1);
    if (relu) return {direct};
    ir::LibraryCandidate last = direct;
    last.operands[0] = last.results[0] = ir::Layout{{0, 2, 3, 1}, {}};
    return {last, direct};
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

  ConvTarget target_;
  PassContext context_{target_, {}};
};

TEST_F(FuseConvEpilogueTest, TakesAReluAndItsGradient) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[1,2,4,4]
      %w = weight : f32[3,2,1,1]
      %bias = bias : f32[3]
      %dy = data : f32[1,3,4,4]
      %conv = conv2d(%x, %w, %bias) {algorithm="direct"} : f32[1,3,4,4]
            @"features.0"
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
      %y = fusion(%x, %w, %bias) {kind="library"}
            : f32[1,3,4,4] @"features.0" graph library {
        %x = data : f32[1,2,4,4]
        %w = data : f32[3,2,1,1]
        %bias = data : f32[3]
        %conv2d = conv2d(%x, %w, %bias) {algorithm="direct"} : f32[1,3,4,4]
        %relu = relu(%conv2d) : f32[1,3,4,4]
        return %relu as "conv2d"
      }
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
      %conv = conv2d(%x, %w) {algorithm="direct"} : f32[1,3,4,4]
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
      %conv = conv2d(%x, %w) {algorithm="direct"} : f32[1,3,4,4]
      %y = relu(%conv) : f32[1,3,4,4]
      return %y as "y", %conv as "z"
    })",
             "conv has other uses");
}

TEST_F(FuseConvEpilogueTest, LeavesWhatTheLibraryLacks) {
  ExpectKept(R"(graph g {
      %x = data : f64[1,2,4,4]
      %w = weight : f64[3,2,1,1]
      %conv = conv2d(%x, %w) {algorithm="direct"} : f64[1,3,4,4]
      %y = relu(%conv) : f64[1,3,4,4]
      return %y as "y"
    })",
             "the library has no such convolution with a ReLU");
}

TEST_F(FuseConvEpilogueTest, LeavesWhatTheLibraryDoesByAnotherKernel) {
  ExpectKept(R"(graph g {
      %x = data : f32[1,4,4,4]
      %w = weight : f32[2,2,1,1]
      %conv = conv2d(%x, %w) {algorithm="direct", groups=2} : f32[1,2,4,4]
      %y = relu(%conv) : f32[1,2,4,4]
      return %y as "y"
    })",
             "the library has no such convolution with a ReLU");
}

TEST_F(FuseConvEpilogueTest, LeavesWhatTheLibraryDoesInOtherLayouts) {
  ExpectKept(R"(graph g {
      %x = data : f32[1,2,4,4]{acdb}
      %w = weight : f32[3,2,1,1]
      %conv = conv2d(%x, %w) {algorithm="direct"} : f32[1,3,4,4]{acdb}
      %y = relu(%conv) : f32[1,3,4,4]{acdb}
      return %y as "y"
    })",
             "the library has no such convolution with a ReLU");
}

TEST_F(FuseConvEpilogueTest, TakesOneOfTwoRelusInARow) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[1,2,4,4]
      %w = weight : f32[3,2,1,1]
      %conv = conv2d(%x, %w) {algorithm="direct"} : f32[1,3,4,4]
      %y = relu(%conv) : f32[1,3,4,4]
      %z = relu(%y) : f32[1,3,4,4]
      return %z as "z"
    })");
  EXPECT_TRUE(Run(*graph));
  test::ExpectSameGraph(R"(graph g {
      %x = data : f32[1,2,4,4]
      %w = weight : f32[3,2,1,1]
      %y = fusion(%x, %w) {kind="library"} : f32[1,3,4,4] {
        %x = data : f32[1,2,4,4]
        %w = data : f32[3,2,1,1]
        %conv = conv2d(%x, %w) {algorithm="direct"} : f32[1,3,4,4]
        %relu = relu(%conv) : f32[1,3,4,4]
        return %relu as "conv2d"
      }
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
      %conv = conv2d(%x, %w) {algorithm="direct"} : f32[1,3,4,4]
      %y = relu(%conv) : f32[1,3,4,4]
      return %y as "y"
    })");
  EXPECT_FALSE(FuseConvEpilogue(*graph, context));
}

// --- Matmuls -----------------------------------------------------------------

// A library that fuses a bias with the result's dtype, in 16 bits and f32, and
// a ReLU if there is a bias.
class MatmulTarget final : public ir::TargetQueries {
 public:
  const ir::Target& target() const override { return target_; }
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    const ir::DType result = node.output()->type().dtype;
    const ir::Epilogue epilogue = ir::EpilogueOf(node).value();
    if ((epilogue.bias && (result == ir::DType::kF64 ||
                           node.input(2)->type().dtype != result)) ||
        (!epilogue.bias && epilogue.relu)) {
      return {};
    }
    ir::LibraryCandidate products{.name = "products", .algorithm = "products"};
    products.operands.resize(node.num_inputs());
    products.results.resize(1);
    return {products};
  }

 private:
  ir::Target target_ = ir::FindTarget("nvidia-h200");
};

class FuseMatmulEpilogueTest : public testing::Test {
 protected:
  // Checks that the pass turns `before` into `after`, and that both are equal
  // except for rounding.
  void Expect(std::string_view before, std::string_view after) {
    const auto graph = test::ParseOrDie(before);
    EXPECT_TRUE(FuseMatmulEpilogue(*graph, context_));
    test::ExpectSameGraph(after, *graph, test::Names::kCompare);
    const auto inputs = test::RandomInputs(*graph, 1);
    const auto expected =
        ir::Interpret(*test::ParseOrDie(before), inputs, ir::EvalMode::kExact);
    const auto actual = ir::Interpret(*graph, inputs, ir::EvalMode::kExact);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(actual[i].data, expected[i].data);
    }
    PassContext again(target_, options_);
    EXPECT_FALSE(FuseMatmulEpilogue(*graph, again));
  }

  void ExpectKept(std::string_view text, std::string_view reason) {
    PassContext context(target_, options_);
    const auto graph = test::ParseOrDie(text);
    EXPECT_FALSE(FuseMatmulEpilogue(*graph, context));
    test::ExpectSameGraph(text, *graph);
    ASSERT_FALSE(context.decisions().empty());
    EXPECT_FALSE(context.decisions()[0].accepted);
    EXPECT_EQ(context.decisions()[0].reason, reason);
    EXPECT_EQ(context.counters().at("matmul_bias"), 0);
    EXPECT_EQ(context.counters().at("matmul_relu"), 0);
  }

  MatmulTarget target_;
  PassOptions options_;
  PassContext context_{target_, {}};
};

TEST_F(FuseMatmulEpilogueTest, TakesABiasAndAReluWithItsGradient) {
  Expect(R"(graph g {
      %x = data : f16[2,3]
      %w = data : f16[4,3]
      %bias = bias : f32[4]
      %dy = data : f16[2,4]
      %b = cast(%bias) {dtype="f16"} : f16[4] @"fc"
      %p = matmul(%x, %w) {transpose_b=true} : f16[2,4] @"fc"
      %rows = broadcast(%b) {dims=[1], shape=[2,4]} : f16[2,4] @"fc"
      %s = add(%p, %rows) : f16[2,4] @"fc"
      %y = relu(%s) : f16[2,4] @"act"
      %zero = constant() {dtype="f16", shape=[2,4], value=[0.0]} : f16[2,4]
      %on = compare(%y, %zero) {direction="gt"} : bool[2,4]
      %dx = select(%on, %dy, %zero) : f16[2,4]
      return %y as "y", %dx as "dx"
    })",
         R"(graph g {
      %x = data : f16[2,3]
      %w = data : f16[4,3]
      %bias = bias : f32[4]
      %dy = data : f16[2,4]
      %b = cast(%bias) {dtype="f16"} : f16[4] @"fc"
      %y = fusion(%x, %w, %b) {kind="library"} : f16[2,4] @"fc" graph library {
        %x = data : f16[2,3]
        %w = data : f16[4,3]
        %b = data : f16[4]
        %matmul = matmul(%x, %w) {result_dtype="f32", transpose_b=true} : f32[2,4]
        %cast = cast(%b) {dtype="f32"} : f32[4]
        %broadcast = broadcast(%cast) {dims=[1], shape=[2,4]} : f32[2,4]
        %add = add(%matmul, %broadcast) : f32[2,4]
        %cast_1 = cast(%add) {dtype="f16"} : f16[2,4]
        %relu = relu(%cast_1) : f16[2,4]
        return %relu as "matmul"
      }
      %zero = constant() {dtype="f16", shape=[2,4], value=[0.0]} : f16[2,4]
      %on = compare(%y, %zero) {direction="gt"} : bool[2,4]
      %dx = select(%on, %dy, %zero) : f16[2,4]
      return %y as "y", %dx as "dx"
    })");
  EXPECT_EQ(context_.counters().at("matmul_bias"), 1);
  EXPECT_EQ(context_.counters().at("matmul_relu"), 1);
}

// The bias may be either operand of the addition. It applies to every matrix of
// a batch.
TEST_F(FuseMatmulEpilogueTest, TakesAWideBiasOfABatchOfProducts) {
  Expect(R"(graph g {
      %x = data : f16[5,2,3]
      %w = data : f16[5,3,4]
      %bias = bias : f32[4]
      %rows = broadcast(%bias) {dims=[2], shape=[5,2,4]} : f32[5,2,4]
      %p = matmul(%x, %w) {result_dtype="f32"} : f32[5,2,4]
      %s = add(%rows, %p) : f32[5,2,4]
      %more = neg(%rows) : f32[5,2,4]
      return %s as "s", %more as "more"
    })",
         R"(graph g {
      %x = data : f16[5,2,3]
      %w = data : f16[5,3,4]
      %bias = bias : f32[4]
      %rows = broadcast(%bias) {dims=[2], shape=[5,2,4]} : f32[5,2,4]
      %s = fusion(%x, %w, %bias) {kind="library"} : f32[5,2,4] graph library {
        %x = data : f16[5,2,3]
        %w = data : f16[5,3,4]
        %bias = data : f32[4]
        %matmul = matmul(%x, %w) {result_dtype="f32"} : f32[5,2,4]
        %broadcast = broadcast(%bias) {dims=[2], shape=[5,2,4]} : f32[5,2,4]
        %add = add(%matmul, %broadcast) : f32[5,2,4]
        return %add as "matmul"
      }
      %more = neg(%rows) : f32[5,2,4]
      return %s as "s", %more as "more"
    })");
}

constexpr char kBiased[] = R"(graph g {
      %x = data : f32[2,3]
      %w = data : f32[3,4]
      %bias = bias : f32[4]
      %p = matmul(%x, %w) : f32[2,4]
      %rows = broadcast(%bias) {dims=[1], shape=[2,4]} : f32[2,4]
      %s = add(%p, %rows) : f32[2,4]
      %y = relu(%s) : f32[2,4]
      return %y as "y"
    })";

TEST_F(FuseMatmulEpilogueTest, LeavesABiasWhereEveryOpRounds) {
  options_.eager_rounding = true;
  ExpectKept(kBiased, "eager rounding rounds it before the bias is added");
}

TEST_F(FuseMatmulEpilogueTest, StopsWhenOutOfFuel) {
  options_.fuel["fuse_matmul_epilogue"] = 0;
  ExpectKept(kBiased, "out of fuel");
}

TEST_F(FuseMatmulEpilogueTest, LeavesAProductWithOtherReaders) {
  ExpectKept(R"(graph g {
      %x = data : f32[2,3]
      %w = data : f32[3,4]
      %bias = bias : f32[4]
      %p = matmul(%x, %w) : f32[2,4]
      %rows = broadcast(%bias) {dims=[1], shape=[2,4]} : f32[2,4]
      %s = add(%p, %rows) : f32[2,4]
      return %s as "s", %p as "p"
    })",
             "p has other uses");
}

TEST_F(FuseMatmulEpilogueTest, LeavesWhatTheLibraryLacks) {
  ExpectKept(R"(graph g {
      %x = data : f64[2,3]
      %w = data : f64[3,4]
      %bias = bias : f64[4]
      %p = matmul(%x, %w) : f64[2,4]
      %rows = broadcast(%bias) {dims=[1], shape=[2,4]} : f64[2,4]
      %s = add(%p, %rows) : f64[2,4]
      return %s as "s"
    })",
             "the library has no such matmul with a bias");
  ExpectKept(R"(graph g {
      %x = data : f32[2,3]
      %w = data : f32[3,4]
      %p = matmul(%x, %w) : f32[2,4]
      %y = relu(%p) : f32[2,4]
      return %y as "y"
    })",
             "the library has no such matmul with a ReLU");
}

// Neither one number per row nor a matrix is a bias.
TEST_F(FuseMatmulEpilogueTest, LeavesAProductOfAGeneratedKernel) {
  constexpr const char* kText = R"(graph g {
      %x = data : f32[4,8]
      %w = weight : f32[16,8]
      %bias = weight : f32[16]
      %p = matmul(%x, %w) {transpose_b=true, algorithm="generated"}
         : f32[4,16]
      %b = broadcast(%bias) {dims=[1], shape=[4,16]} : f32[4,16]
      %s = add(%p, %b) : f32[4,16]
      %y = relu(%s) : f32[4,16]
      return %y as "y"
    })";
  const auto graph = test::ParseOrDie(kText);
  EXPECT_FALSE(FuseMatmulEpilogue(*graph, context_));
  test::ExpectSameGraph(kText, *graph);
}

TEST_F(FuseMatmulEpilogueTest, KnowsABiasFromOtherAddends) {
  for (const char* addend : {
           "%v = data : f32[4]\n"
           "%m = broadcast(%v) {dims=[0], shape=[4,4]} : f32[4,4]",
           "%v = data : f32[4,4]\n"
           "%m = neg(%v) : f32[4,4]",
       }) {
    const auto graph = test::ParseOrDie(fmt::format(R"(graph g {{
      %x = data : f32[4,3]
      %w = data : f32[3,4]
      {}
      %p = matmul(%x, %w) : f32[4,4]
      %s = add(%p, %m) : f32[4,4]
      return %s as "s"
    }})",
                                                    addend));
    EXPECT_FALSE(FuseMatmulEpilogue(*graph, context_));
    EXPECT_TRUE(context_.decisions().empty());
  }
}

}  // namespace
}  // namespace fusor::passes
