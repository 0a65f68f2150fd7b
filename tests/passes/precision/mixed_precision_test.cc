#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/verifier.h"
#include "passes/passes.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"

namespace fusor::passes {
namespace {

using ir::DType;

// A library that is equally fast in every dtype, except that 3x3 convolutions
// are faster in f32.
class WinogradTarget final : public ir::TargetQueries {
 public:
  const ir::Target& target() const override { return target_; }
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    if (!node.attrs().Has("groups")) return {};
    const bool three = node.input(1)->type().shape[2] == 3;
    const bool wide = node.input(0)->type().dtype == DType::kF32;
    ir::LibraryCandidate candidate;
    candidate.modelled_ns = three && wide ? 500 : 1000;
    return {candidate};
  }

 private:
  ir::Target target_ = ir::FindTarget("cpu-avx512");
};

// A library with convolutions whose operands and results all have one dtype.
class OneDTypeTarget final : public ir::TargetQueries {
 public:
  const ir::Target& target() const override { return target_; }
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    const DType dtype = node.input(0)->type().dtype;
    const bool one = node.output()->type().dtype == dtype &&
                     std::all_of(node.inputs().begin(), node.inputs().end(),
                                 [&](const ir::Value* v) {
                                   return v->type().dtype == dtype;
                                 });
    if (!node.attrs().Has("groups") || !one) return {};
    return {ir::LibraryCandidate{}};
  }

 private:
  ir::Target target_ = ir::FindTarget("nvidia-h200");
};

class MixedPrecisionTest : public testing::Test {
 protected:
  MixedPrecisionTest() { options_.precision.dtype = DType::kBF16; }

  std::unique_ptr<ir::Graph> Run(std::string_view text,
                                 const ir::TargetQueries& target) {
    auto graph = test::ParseOrDie(text);
    PassContext context(target, options_);
    changed_ = MixedPrecision(*graph, context);
    counters_ = context.counters();
    ir::Verify(*graph);
    return graph;
  }
  std::unique_ptr<ir::Graph> Run(std::string_view text) {
    return Run(text, target_);
  }

  void Expect(std::string_view before, std::string_view after) {
    const auto graph = Run(before);
    EXPECT_TRUE(changed_);
    test::ExpectSameGraph(after, *graph);
    PassContext again(target_, options_);
    EXPECT_FALSE(MixedPrecision(*graph, again));
    test::ExpectSameGraph(after, *graph);
  }

  test::BareTarget target_;
  PassOptions options_;
  bool changed_ = false;
  std::map<std::string, int64_t> counters_;
};

constexpr char kTwoConvs[] = R"(graph g {
    %x = data : f32[1,2,4,4]
    %v = weight : f32[2,2,1,1]
    %w = weight : f32[3,2,1,1]
    %a = conv2d(%x, %v) : f32[1,2,4,4] @"a"
    %b = relu(%a) : f32[1,2,4,4] @"b"
    %c = mul(%b, %b) : f32[1,2,4,4] @"c"
    %d = conv2d(%c, %w) : f32[1,3,4,4] @"d"
    %e = reduce(%d) {dims=[2,3], kind="sum"} : f32[1,3] @"e"
    return %e as "e"
  })";

TEST_F(MixedPrecisionTest, NarrowsOpsBetweenAllowedOps) {
  Expect(kTwoConvs, R"(graph g {
    %x = data : f32[1,2,4,4]
    %v = weight : f32[2,2,1,1]
    %w = weight : f32[3,2,1,1]
    %cast_2 = cast(%w) {dtype="bf16"} : bf16[3,2,1,1] @"d"
    %cast_1 = cast(%v) {dtype="bf16"} : bf16[2,2,1,1] @"a"
    %cast = cast(%x) {dtype="bf16"} : bf16[1,2,4,4] @"a"
    %a = conv2d(%cast, %cast_1) : bf16[1,2,4,4] @"a"
    %b = relu(%a) : bf16[1,2,4,4] @"b"
    %c = mul(%b, %b) : bf16[1,2,4,4] @"c"
    %d = conv2d(%c, %cast_2) {result_dtype="f32"} : f32[1,3,4,4] @"d"
    %e = reduce(%d) {dims=[2,3], kind="sum"} : f32[1,3] @"e"
    return %e as "e"
  })");
  EXPECT_EQ(counters_["casts_narrow"], 3);
  EXPECT_EQ(counters_["casts_wide"], 0);
  EXPECT_EQ(counters_["allowed_16"], 2);
  EXPECT_EQ(counters_["allowed_f32"], 0);
}

TEST_F(MixedPrecisionTest, TakesTheLibrarysDTypeOfResults) {
  const auto graph = Run(kTwoConvs, OneDTypeTarget());
  test::ExpectSameGraph(R"(graph g {
    %x = data : f32[1,2,4,4]
    %v = weight : f32[2,2,1,1]
    %w = weight : f32[3,2,1,1]
    %cast_2 = cast(%w) {dtype="bf16"} : bf16[3,2,1,1] @"d"
    %cast_1 = cast(%v) {dtype="bf16"} : bf16[2,2,1,1] @"a"
    %cast = cast(%x) {dtype="bf16"} : bf16[1,2,4,4] @"a"
    %a = conv2d(%cast, %cast_1) : bf16[1,2,4,4] @"a"
    %b = relu(%a) : bf16[1,2,4,4] @"b"
    %c = mul(%b, %b) : bf16[1,2,4,4] @"c"
    %d = conv2d(%c, %cast_2) : bf16[1,3,4,4] @"d"
    %cast_3 = cast(%d) {dtype="f32"} : f32[1,3,4,4] @"d"
    %e = reduce(%cast_3) {dims=[2,3], kind="sum"} : f32[1,3] @"e"
    return %e as "e"
  })",
                        *graph);
}

TEST_F(MixedPrecisionTest, NarrowsABiasThatTheLibraryHasNarrowAlone) {
  const auto graph = Run(R"(graph g {
    %x = data : f32[1,2,4,4]
    %w = weight : f32[3,2,1,1]
    %b = bias : f32[3]
    %d = conv2d(%x, %w, %b) : f32[1,3,4,4]
    return %d as "d"
  })",
                         OneDTypeTarget());
  test::ExpectSameGraph(R"(graph g {
    %x = data : f32[1,2,4,4]
    %w = weight : f32[3,2,1,1]
    %b = bias : f32[3]
    %cast_2 = cast(%b) {dtype="bf16"} : bf16[3]
    %cast_1 = cast(%w) {dtype="bf16"} : bf16[3,2,1,1]
    %cast = cast(%x) {dtype="bf16"} : bf16[1,2,4,4]
    %d = conv2d(%cast, %cast_1, %cast_2) : bf16[1,3,4,4]
    %cast_3 = cast(%d) {dtype="f32"} : f32[1,3,4,4]
    return %cast_3 as "d"
  })",
                        *graph);
}

constexpr char kWeightGradient[] = R"(graph g {
    %x = data : f32[1,2,4,4]
    %dy = data : f32[1,3,4,4]
    %d = conv2d_grad_weight(%x, %dy) {weight_shape=[3,2,1,1]} : f32[3,2,1,1]
    %s = all_reduce(%d) : f32[3,2,1,1]
    %e = add(%s, %s) : f32[3,2,1,1]
    return %e as "e"
  })";

TEST_F(MixedPrecisionTest, WidensNarrowGradientsBehindASumOverOneRank) {
  options_.precision.deny = {"add"};
  auto graph = Run(kWeightGradient, OneDTypeTarget());
  test::ExpectSameGraph(R"(graph g {
    %x = data : f32[1,2,4,4]
    %dy = data : f32[1,3,4,4]
    %cast_1 = cast(%dy) {dtype="bf16"} : bf16[1,3,4,4]
    %cast = cast(%x) {dtype="bf16"} : bf16[1,2,4,4]
    %d = conv2d_grad_weight(%cast, %cast_1) {weight_shape=[3,2,1,1]}
        : bf16[3,2,1,1]
    %s = all_reduce(%d) : bf16[3,2,1,1]
    %cast_2 = cast(%s) {dtype="f32"} : f32[3,2,1,1]
    %e = add(%cast_2, %cast_2) : f32[3,2,1,1]
    return %e as "e"
  })",
                        *graph);
  options_.world_size = 2;
  graph = Run(kWeightGradient, OneDTypeTarget());
  test::ExpectSameGraph(R"(graph g {
    %x = data : f32[1,2,4,4]
    %dy = data : f32[1,3,4,4]
    %cast_1 = cast(%dy) {dtype="bf16"} : bf16[1,3,4,4]
    %cast = cast(%x) {dtype="bf16"} : bf16[1,2,4,4]
    %d = conv2d_grad_weight(%cast, %cast_1) {weight_shape=[3,2,1,1]}
        : bf16[3,2,1,1]
    %cast_2 = cast(%d) {dtype="f32"} : f32[3,2,1,1]
    %s = all_reduce(%cast_2) : f32[3,2,1,1]
    %e = add(%s, %s) : f32[3,2,1,1]
    return %e as "e"
  })",
                        *graph);
}

TEST_F(MixedPrecisionTest, DoesNothingInF32) {
  options_.precision.dtype = DType::kF32;
  const auto graph = Run(kTwoConvs);
  EXPECT_FALSE(changed_);
  test::ExpectSameGraph(kTwoConvs, *graph);
}

TEST_F(MixedPrecisionTest, WidensOnceForAllDeniedReaders) {
  Expect(R"(graph g {
    %x = data : f32[2,2]
    %w = weight : f32[2,2]
    %a = matmul(%x, %w) : f32[2,2]
    %b = matmul(%a, %w) : f32[2,2]
    %e = exp(%a) : f32[2,2]
    %l = log(%a) : f32[2,2]
    return %b as "b", %e as "e", %l as "l", %a as "a"
  })",
         R"(graph g {
    %x = data : f32[2,2]
    %w = weight : f32[2,2]
    %cast_1 = cast(%w) {dtype="bf16"} : bf16[2,2]
    %cast = cast(%x) {dtype="bf16"} : bf16[2,2]
    %a = matmul(%cast, %cast_1) : bf16[2,2]
    %cast_2 = cast(%a) {dtype="f32"} : f32[2,2]
    %b = matmul(%a, %cast_1) {result_dtype="f32"} : f32[2,2]
    %e = exp(%cast_2) : f32[2,2]
    %l = log(%cast_2) : f32[2,2]
    return %b as "b", %e as "e", %l as "l", %cast_2 as "a"
  })");
}

// A matmul or convolution of f32 whose result_dtype is f32, too, stays as it
// is.
TEST_F(MixedPrecisionTest, KeepsAskedPrecision) {
  Expect(R"(graph g {
    %x = data : f32[2,2]
    %w = weight : f32[2,2]
    %a = matmul(%x, %w) {result_dtype="f32"} : f32[2,2]
    %b = matmul(%a, %w) : f32[2,2]
    return %b as "b"
  })",
         R"(graph g {
    %x = data : f32[2,2]
    %w = weight : f32[2,2]
    %cast = cast(%w) {dtype="bf16"} : bf16[2,2]
    %a = matmul(%x, %w) {result_dtype="f32"} : f32[2,2]
    %cast_1 = cast(%a) {dtype="bf16"} : bf16[2,2]
    %b = matmul(%cast_1, %cast) {result_dtype="f32"} : f32[2,2]
    return %b as "b"
  })");
}

// Arithmetic after denied ops is denied, too. neg is not affected, as it only
// moves values.
TEST_F(MixedPrecisionTest, KeepsWhatFollowsADeniedOpWide) {
  Expect(R"(graph g {
    %x = data : f32[2,2]
    %w = weight : f32[2,2]
    %a = matmul(%x, %w) : f32[2,2]
    %e = exp(%a) : f32[2,2]
    %f = mul(%e, %e) : f32[2,2]
    %g = neg(%f) : f32[2,2]
    %b = matmul(%g, %w) : f32[2,2]
    return %b as "b"
  })",
         R"(graph g {
    %x = data : f32[2,2]
    %w = weight : f32[2,2]
    %cast_1 = cast(%w) {dtype="bf16"} : bf16[2,2]
    %cast = cast(%x) {dtype="bf16"} : bf16[2,2]
    %a = matmul(%cast, %cast_1) {result_dtype="f32"} : f32[2,2]
    %e = exp(%a) : f32[2,2]
    %f = mul(%e, %e) : f32[2,2]
    %cast_2 = cast(%f) {dtype="bf16"} : bf16[2,2]
    %g = neg(%cast_2) : bf16[2,2]
    %b = matmul(%g, %cast_1) {result_dtype="f32"} : f32[2,2]
    return %b as "b"
  })");
}

// exp(-|x|) and exp(-x x) are parts of activation functions and gradients.
TEST_F(MixedPrecisionTest, NarrowsBoundedExponentialsLikeTanh) {
  Expect(R"(graph g {
    %x = data : f32[2,2]
    %w = weight : f32[2,2]
    %a = matmul(%x, %w) : f32[2,2]
    %n = neg(%a) : f32[2,2]
    %m = minimum(%n, %a) : f32[2,2]
    %e = exp(%m) : f32[2,2]
    %s = mul(%a, %a) : f32[2,2]
    %t = neg(%s) : f32[2,2]
    %f = exp(%t) : f32[2,2]
    %g = add(%e, %f) : f32[2,2]
    %b = matmul(%g, %w) : f32[2,2]
    return %b as "b"
  })",
         R"(graph g {
    %x = data : f32[2,2]
    %w = weight : f32[2,2]
    %cast_1 = cast(%w) {dtype="bf16"} : bf16[2,2]
    %cast = cast(%x) {dtype="bf16"} : bf16[2,2]
    %a = matmul(%cast, %cast_1) : bf16[2,2]
    %n = neg(%a) : bf16[2,2]
    %m = minimum(%n, %a) : bf16[2,2]
    %e = exp(%m) : bf16[2,2]
    %s = mul(%a, %a) : bf16[2,2]
    %t = neg(%s) : bf16[2,2]
    %f = exp(%t) : bf16[2,2]
    %g = add(%e, %f) : bf16[2,2]
    %b = matmul(%g, %cast_1) {result_dtype="f32"} : f32[2,2]
    return %b as "b"
  })");
}

TEST_F(MixedPrecisionTest, KeepsScaleShiftAndStatisticsWide) {
  const auto graph = Run(R"(graph g {
    %x = data : f32[2,2,3,3]
    %w = weight : f32[2,2,1,1]
    %gamma = norm_scale : f32[2]
    %beta = norm_shift : f32[2]
    %a = conv2d(%x, %w) : f32[2,2,3,3]
    %y, %mean, %variance = batch_norm_train(%a, %gamma, %beta)
          : f32[2,2,3,3], f32[2], f32[2]
    %b = conv2d(%y, %w) : f32[2,2,3,3]
    return %b as "b", %mean as "mean", %variance as "variance"
  })");
  const ir::Node* norm = graph->outputs()[1].value->producer();
  EXPECT_EQ(norm->op_name(), "batch_norm_train");
  EXPECT_EQ(norm->input(0)->type().dtype, DType::kBF16);
  EXPECT_EQ(norm->input(1)->name(), "gamma");
  EXPECT_EQ(norm->input(2)->name(), "beta");
  EXPECT_EQ(norm->output(0)->type().dtype, DType::kBF16);
  EXPECT_EQ(norm->output(1)->type().dtype, DType::kF32);
  EXPECT_EQ(counters_["casts_wide"], 0);
}

// Masks do not propagate precision, so dropout keeps its neighbours' dtypes.
TEST_F(MixedPrecisionTest, MasksDoNotPropagatePrecision) {
  const auto graph = Run(R"(graph g {
    %x = data : f32[2,2]
    %r = data : f32[2,2]
    %w = weight : f32[2,2]
    %a = matmul(%x, %w) : f32[2,2]
    %e = exp(%r) : f32[2,2]
    %m = compare(%e, %r) {direction="gt"} : bool[2,2]
    %s = select(%m, %a, %a) : f32[2,2]
    %b = matmul(%s, %w) : f32[2,2]
    return %b as "b"
  })");
  const ir::Node* select =
      graph->outputs()[0].value->producer()->input(0)->producer();
  EXPECT_EQ(select->op_name(), "select");
  EXPECT_EQ(select->output()->type().dtype, DType::kBF16);
}

// Only the statistics lead to an allowed op, not the sum and the ReLU. But as
// one op with the normalisation, these would be computed in 16 bits, too.
TEST_F(MixedPrecisionTest,
       GivesSeparateOpsThePrecisionOfTheFusedNormalisation) {
  Expect(R"(graph g {
    %x = data : f32[1,2,4,4]
    %r = data : f32[1,2,4,4]
    %d = data : f32[1,2,4,4]
    %v = weight : f32[2,2,1,1]
    %g = norm_scale : f32[2]
    %h = norm_shift : f32[2]
    %a = conv2d(%x, %v) : f32[1,2,4,4] @"a"
    %b, %m, %s = batch_norm_train(%a, %g, %h) : f32[1,2,4,4], f32[2], f32[2] @"b"
    %c = add(%b, %r) : f32[1,2,4,4] @"c"
    %y = relu(%c) : f32[1,2,4,4] @"y"
    %e = exp(%y) : f32[1,2,4,4] @"e"
    %dx, %dg, %dh = batch_norm_grad(%d, %a, %g, %h, %m, %s) : f32[1,2,4,4], f32[2], f32[2] @"b"
    %dv = conv2d_grad_weight(%x, %dx) {weight_shape=[2,2,1,1]} : f32[2,2,1,1] @"a"
    return %e as "e", %dv as "dv"
  })",
         R"(graph g {
    %x = data : f32[1,2,4,4]
    %r = data : f32[1,2,4,4]
    %d = data : f32[1,2,4,4]
    %v = weight : f32[2,2,1,1]
    %g = norm_scale : f32[2]
    %h = norm_shift : f32[2]
    %n4 = cast(%d) {dtype="bf16"} : bf16[1,2,4,4] @"b"
    %n3 = cast(%r) {dtype="bf16"} : bf16[1,2,4,4] @"c"
    %n2 = cast(%v) {dtype="bf16"} : bf16[2,2,1,1] @"a"
    %n1 = cast(%x) {dtype="bf16"} : bf16[1,2,4,4] @"a"
    %a = conv2d(%n1, %n2) : bf16[1,2,4,4] @"a"
    %b, %m, %s = batch_norm_train(%a, %g, %h) : bf16[1,2,4,4], f32[2], f32[2] @"b"
    %c = add(%b, %n3) : bf16[1,2,4,4] @"c"
    %y = relu(%c) : bf16[1,2,4,4] @"y"
    %w = cast(%y) {dtype="f32"} : f32[1,2,4,4] @"y"
    %e = exp(%w) : f32[1,2,4,4] @"e"
    %dx, %dg, %dh = batch_norm_grad(%n4, %a, %g, %h, %m, %s) : bf16[1,2,4,4], f32[2], f32[2] @"b"
    %dv = conv2d_grad_weight(%n1, %dx) {result_dtype="f32", weight_shape=[2,2,1,1]} : f32[2,2,1,1] @"a"
    return %e as "e", %dv as "dv"
  })");
}

TEST_F(MixedPrecisionTest, TakesTheUsersLists) {
  options_.precision.deny = {"mul"};
  auto graph = Run(kTwoConvs);
  EXPECT_EQ(counters_["casts_wide"], 1);
  EXPECT_EQ(counters_["casts_narrow"], 4);
  options_.precision = {.dtype = DType::kBF16, .allow = {}, .deny = {"conv2d"}};
  graph = Run(kTwoConvs);
  EXPECT_FALSE(changed_);
  options_.precision = {.dtype = DType::kBF16, .allow = {"reduce"}, .deny = {}};
  graph = Run(kTwoConvs);
  EXPECT_EQ(graph->outputs()[0].value->producer()->input(0)->type().dtype,
            DType::kBF16);
}

TEST_F(MixedPrecisionTest, NamesTheNearestOpForAnUnknownOne) {
  options_.precision.allow = {"conv2"};
  try {
    Run(kTwoConvs);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_STREQ(error.what(),
                 "mixed precision, allow list: unknown op conv2; did you mean "
                 "conv2d?");
  }
}

TEST_F(MixedPrecisionTest, LeavesWhatTheTargetRunsFasterInF32) {
  const WinogradTarget target;
  const auto graph = Run(R"(graph g {
    %x = data : f32[1,2,4,4]
    %v = weight : f32[2,2,3,3]
    %w = weight : f32[3,2,1,1]
    %a = conv2d(%x, %v) {pad=[1,1]} : f32[1,2,4,4]
    %b = relu(%a) : f32[1,2,4,4]
    %d = conv2d(%b, %w) : f32[1,3,4,4]
    return %d as "d"
  })",
                         target);
  EXPECT_EQ(counters_["allowed_f32"], 1);
  EXPECT_EQ(counters_["allowed_16"], 1);
  const ir::Node* second = graph->outputs()[0].value->producer();
  const ir::Node* relu = second->input(0)->producer();
  EXPECT_EQ(relu->output()->type().dtype, DType::kBF16);
}

// Ops that share a constant are not linked.
TEST_F(MixedPrecisionTest, ConstantsDoNotLinkOps) {
  const WinogradTarget target;
  const auto graph = Run(R"(graph g {
    %x = data : f32[1,2,4,4]
    %v = weight : f32[2,2,3,3]
    %w = weight : f32[2,2,1,1]
    %zero = constant() {dtype="f32", shape=[1,2,4,4], value=[0]} : f32[1,2,4,4]
    %a = conv2d(%x, %v) {pad=[1,1]} : f32[1,2,4,4]
    %m = maximum(%a, %zero) : f32[1,2,4,4]
    %b = conv2d(%m, %v) {pad=[1,1]} : f32[1,2,4,4]
    %c = conv2d(%x, %w) : f32[1,2,4,4]
    %n = maximum(%c, %zero) : f32[1,2,4,4]
    %d = conv2d(%n, %w) : f32[1,2,4,4]
    return %b as "b", %d as "d"
  })",
                         target);
  const auto dtype = [&](const std::string& name) {
    for (const auto& node : graph->nodes()) {
      if (node->output()->name() == name) return node->output()->type().dtype;
    }
    return DType::kBool;
  };
  EXPECT_EQ(dtype("m"), DType::kF32);
  EXPECT_EQ(dtype("n"), DType::kBF16);
}

// This CPU has no f16 arithmetic. Operands and results are rounded to f16
// nevertheless.
TEST_F(MixedPrecisionTest, SurroundsWhatTheTargetCannotMultiply) {
  options_.precision.dtype = DType::kF16;
  Expect(R"(graph g {
    %x = data : f32[2,2]
    %w = weight : f32[2,2]
    %a = matmul(%x, %w) : f32[2,2]
    %b = relu(%a) : f32[2,2]
    %c = matmul(%b, %w) : f32[2,2]
    return %c as "c"
  })",
         R"(graph g {
    %x = data : f32[2,2]
    %w = weight : f32[2,2]
    %cast_1 = cast(%w) {dtype="f16"} : f16[2,2]
    %cast_3 = cast(%cast_1) {dtype="f32"} : f32[2,2]
    %cast = cast(%x) {dtype="f16"} : f16[2,2]
    %cast_2 = cast(%cast) {dtype="f32"} : f32[2,2]
    %a = matmul(%cast_2, %cast_3) : f32[2,2]
    %cast_4 = cast(%a) {dtype="f16"} : f16[2,2]
    %b = relu(%cast_4) : f16[2,2]
    %cast_5 = cast(%b) {dtype="f32"} : f32[2,2]
    %c = matmul(%cast_5, %cast_3) : f32[2,2]
    return %c as "c"
  })");
}

}  // namespace
}  // namespace fusor::passes
