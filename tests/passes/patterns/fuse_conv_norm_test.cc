// Fusion of normalisation ops with convolutions. Compares graphs, and whole
// steps with and without the fusions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "codegen/compiler.h"
#include "ir/interpreter/interpreter.h"
#include "ir/library_fusion.h"
#include "ir/support/error.h"
#include "ir/target/conv_problem.h"
#include "passes/passes.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/numeric.h"
#include "tests/testing/small_models.h"
#include "tools/inspect/bisect/draw_inputs.h"

namespace fusor::passes {
namespace {

using ::testing::HasSubstr;

// A library with every convolution except those whose problem contains
// `lacking`.
class NormTarget final : public ir::TargetQueries {
 public:
  const ir::Target& target() const override { return target_; }
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    const std::string problem = ir::LibraryProblem(node);
    if (!lacking.empty() && problem.find(lacking) != std::string::npos) {
      return {};
    }
    const bool plain = ir::IsPlainConvolution(node);
    if (lacks_biases && !plain && ir::LibraryOp(node).num_inputs() == 3) {
      return {};
    }
    const char* name = plain ? "plain" : "fused";
    ir::LibraryCandidate c{.name = name, .algorithm = name};
    c.operands.resize(node.num_inputs());
    c.results.resize(node.num_outputs(), results);
    return {c};
  }

  std::string lacking;
  bool lacks_biases = false;  // with other fused ops
  ir::Layout results;         // for all results

 private:
  ir::Target target_ = ir::FindTarget("nvidia-h200");
};

constexpr std::string_view kConvInputs = R"(graph g {
  %x = data : f16[2,4,6,6]
  %r = data : f16[2,4,6,6]
  %dy = data : f16[2,4,6,6]
  %w = weight : f16[4,4,1,1]
  %w2 = weight : f16[4,4,3,3]
  %gamma = norm_scale : f32[4]
  %beta = norm_shift : f32[4]
  %mean = statistic : f32[4]
  %variance = statistic : f32[4]
)";

std::string WithInputs(std::string_view statements) {
  return std::string(kConvInputs) + std::string(statements) + "\n}";
}

// An affine normalisation with mean %m and variance %v.
constexpr char kAffine[] = R"(
  %e = constant() {dtype="f32", shape=[4], value=[1e-05]} : f32[4] @"bn"
  %ve = add(%v, %e) : f32[4] @"bn"
  %rstd = rsqrt(%ve) : f32[4] @"bn"
  %scale = mul(%gamma, %rstd) : f32[4] @"bn"
  %ms = mul(%m, %scale) : f32[4] @"bn"
  %shift = sub(%beta, %ms) : f32[4] @"bn"
  %scale16 = cast(%scale) {dtype="f16"} : f16[4] @"bn"
  %shift16 = cast(%shift) {dtype="f16"} : f16[4] @"bn"
)";

class FuseConvNormTest : public testing::Test {
 protected:
  bool Run(ir::Graph& graph, NormLowering lowering) {
    PassOptions options;
    options.norm_lowering = lowering;
    options.choices = choices_;
    context_ = std::make_unique<PassContext>(target_, options);
    return FuseConvNorm(graph, *context_);
  }

  void ExpectBecomes(NormLowering lowering, std::string_view before,
                     std::string_view after) {
    const auto graph = test::ParseOrDie(WithInputs(before));
    EXPECT_TRUE(Run(*graph, lowering));
    test::ExpectSameGraph(WithInputs(after), *graph, test::Names::kCompare);
  }

  std::string Rejection(NormLowering lowering, std::string_view text) {
    const auto graph = test::ParseOrDie(WithInputs(text));
    try {
      Run(*graph, lowering);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kGraph);
      return e.what();
    }
    return "accepted";
  }

  void Choose(std::string problem, std::string name) {
    choices_.candidates[{std::move(problem), ir::DType::kF16}] =
        std::move(name);
    choices_.origin.file = "c.txt";
  }

  NormTarget target_;
  ir::AutotuneResults choices_;
  std::unique_ptr<PassContext> context_;
};

constexpr std::string_view kNorm = R"(
  %c = conv2d(%x, %w) {algorithm="plain"} : f16[2,4,6,6] @"conv"
  %y, %m, %v = batch_norm_train(%c, %gamma, %beta) {relu=true}
      : f16[2,4,6,6], f32[4], f32[4] @"bn"
  %z = conv2d(%y, %w2) {algorithm="plain", pad=[1,1]} : f16[2,4,6,6] @"conv2"
  %dw = conv2d_grad_weight(%y, %dy) {algorithm="plain", pad=[1,1],
      weight_shape=[4,4,3,3]} : f16[4,4,3,3] @"conv2"
  return %z as "z", %dw as "dw", %m as "m", %v as "v")";

// A convolution with sums of its result.
constexpr char kSumsBody[] = R"(graph library {
    %x = data : f16[2,4,6,6]
    %w = data : f16[4,4,1,1]
    %conv2d = conv2d(%x, %w) {algorithm="fused"} : f16[2,4,6,6]
    %cast = cast(%conv2d) {dtype="f32"} : f32[2,4,6,6]
    %reduce = reduce(%cast) {dims=[0,2,3], kind="sum"} : f32[4]
    %mul = mul(%cast, %cast) : f32[2,4,6,6]
    %reduce_1 = reduce(%mul) {dims=[0,2,3], kind="sum"} : f32[4]
    return %conv2d as "conv2d", %reduce as "reduce", %reduce_1 as "reduce_1"
  }
)";

// The convolution %c of kNorm, fused with sums of its result.
const std::string kSummed = R"(
  %c, %conv.fusion_1, %conv.fusion_2 = fusion(%x, %w) {kind="library"}
      : f16[2,4,6,6], f32[4], f32[4] @"conv" )" +
                            std::string(kSumsBody);

TEST_F(FuseConvNormTest, SumsUpStatistics) {
  ExpectBecomes(NormLowering::kStatistics, kNorm, kSummed + R"(
  %y, %m, %v = batch_norm_train(%c, %gamma, %beta) {relu=true}
      : f16[2,4,6,6], f32[4], f32[4] @"bn"
  %z = conv2d(%y, %w2) {algorithm="plain", pad=[1,1]} : f16[2,4,6,6] @"conv2"
  %dw = conv2d_grad_weight(%y, %dy) {algorithm="plain", pad=[1,1],
      weight_shape=[4,4,3,3]} : f16[4,4,3,3] @"conv2"
  return %z as "z", %dw as "dw", %m as "m", %v as "v")");
  EXPECT_EQ(context_->counters().at("conv_statistics"), 1);
  ASSERT_EQ(context_->decisions().size(), 1u);
  const Decision& decision = context_->decisions()[0];
  EXPECT_TRUE(decision.accepted);
  EXPECT_EQ(decision.subject, "c");
  EXPECT_EQ(decision.reason, "statistics computed by fused");
  EXPECT_EQ(decision.location.path, "conv");
}

TEST_F(FuseConvNormTest, KeepsWhatKernelsAreToDo) {
  for (const NormLowering lowering :
       {NormLowering::kSeparate, NormLowering::kKernels}) {
    const auto graph = test::ParseOrDie(WithInputs(kNorm));
    EXPECT_FALSE(Run(*graph, lowering));
    test::ExpectSameGraph(WithInputs(kNorm), *graph);
  }
}

// The prologue that normalises %c in the convolutions that read it.
constexpr char kNormalized[] = R"(
    %wide = cast(%c) {dtype="f32"} : f32[2,4,6,6]
    %scale32 = cast(%scale) {dtype="f32"} : f32[4]
    %scales = broadcast(%scale32) {dims=[1], shape=[2,4,6,6]} : f32[2,4,6,6]
    %scaled = mul(%wide, %scales) : f32[2,4,6,6]
    %shift32 = cast(%shift) {dtype="f32"} : f32[4]
    %shifts = broadcast(%shift32) {dims=[1], shape=[2,4,6,6]} : f32[2,4,6,6]
    %shifted = add(%scaled, %shifts) : f32[2,4,6,6]
    %positive = relu(%shifted) : f32[2,4,6,6]
    %read = cast(%positive) {dtype="f16"} : f16[2,4,6,6]
)";

TEST_F(FuseConvNormTest, AppliesANormalisationInItsReaders) {
  const auto graph = test::ParseOrDie(WithInputs(kNorm));
  EXPECT_TRUE(Run(*graph, NormLowering::kPrologues));
  test::ExpectSameGraph(WithInputs(kSummed + R"(
  %y, %m, %v = batch_norm_train(%c, %gamma, %beta) {relu=true}
      : f16[2,4,6,6], f32[4], f32[4] @"bn"
)" + std::string(kAffine) +
                                   R"(
  %z = fusion(%c, %w2, %scale16, %shift16) {kind="library"}
      : f16[2,4,6,6] @"conv2" {
    %c = data : f16[2,4,6,6]
    %w2 = data : f16[4,4,3,3]
    %scale = data : f16[4]
    %shift = data : f16[4]
)" + std::string(kNormalized) + R"(
    %y = conv2d(%read, %w2) {algorithm="fused", pad=[1,1]} : f16[2,4,6,6]
    return %y as "conv2d"
  }
  %dw = fusion(%c, %dy, %scale16, %shift16) {kind="library"}
      : f16[4,4,3,3] @"conv2" {
    %c = data : f16[2,4,6,6]
    %dy = data : f16[2,4,6,6]
    %scale = data : f16[4]
    %shift = data : f16[4]
)" + std::string(kNormalized) + R"(
    %dw = conv2d_grad_weight(%read, %dy) {algorithm="fused", pad=[1,1],
        weight_shape=[4,4,3,3]} : f16[4,4,3,3]
    return %dw as "conv2d_grad_weight"
  }
  return %z as "z", %dw as "dw", %m as "m", %v as "v")"),
                        *graph);
  EXPECT_EQ(context_->counters().at("conv_norm_prologue"), 1);
}

// One reader cannot normalise its operand, so the activation is stored anyway.
TEST_F(FuseConvNormTest, AppliesNothingThatOneReaderCannot) {
  target_.lacking =
      "conv2d_grad_weight x=2x4x6x6 w=4x4x3x3 stride=1,1 pad=1,1 "
      "dilation=1,1 groups=1 fused=mul,add,relu,conv2d_grad_weight";
  EXPECT_EQ(Rejection(NormLowering::kPrologues, kNorm),
            "bn-lowering prologues: nvidia-h200 has no convolutions for this "
            "step with a normalisation of their operand: the library has no " +
                target_.lacking + " in f16");
}

// The next block's shortcut and its weight gradient read the normalised
// activation that one convolution stores.
constexpr std::string_view kJoin = R"(
  %y, %m, %v, %mask = batch_norm_train(%x, %gamma, %beta, %r)
      {relu=true, residual="add"} : f16[2,4,6,6], f32[4], f32[4],
      bool[2,4,6,6] @"bn"
  %z = conv2d(%y, %w) {algorithm="plain"} : f16[2,4,6,6] @"conv"
  %s = mul(%z, %y) : f16[2,4,6,6] @"shortcut"
  %dw = conv2d_grad_weight(%y, %dy) {algorithm="plain",
      weight_shape=[4,4,1,1]} : f16[4,4,1,1] @"conv"
  return %s as "s", %dw as "dw", %m as "m", %v as "v")";

const std::string kJoined = R"(
  %y.unread, %m, %v, %mask = batch_norm_train(%x, %gamma, %beta, %r)
      {relu=true, residual="add"} : f16[2,4,6,6], f32[4], f32[4],
      bool[2,4,6,6] @"bn"
)" + std::string(kAffine) + R"(
  %z, %y = fusion(%x, %w, %scale16, %shift16, %r) {kind="library"}
      : f16[2,4,6,6], f16[2,4,6,6] @"conv" {
    %c = data : f16[2,4,6,6]
    %w = data : f16[4,4,1,1]
    %scale = data : f16[4]
    %shift = data : f16[4]
    %r = data : f16[2,4,6,6]
    %wide = cast(%c) {dtype="f32"} : f32[2,4,6,6]
    %scale32 = cast(%scale) {dtype="f32"} : f32[4]
    %scales = broadcast(%scale32) {dims=[1], shape=[2,4,6,6]} : f32[2,4,6,6]
    %scaled = mul(%wide, %scales) : f32[2,4,6,6]
    %shift32 = cast(%shift) {dtype="f32"} : f32[4]
    %shifts = broadcast(%shift32) {dims=[1], shape=[2,4,6,6]} : f32[2,4,6,6]
    %shifted = add(%scaled, %shifts) : f32[2,4,6,6]
    %r32 = cast(%r) {dtype="f32"} : f32[2,4,6,6]
    %sum = add(%shifted, %r32) : f32[2,4,6,6]
    %positive = relu(%sum) : f32[2,4,6,6]
    %read = cast(%positive) {dtype="f16"} : f16[2,4,6,6]
    %y = conv2d(%read, %w) {algorithm="fused"} : f16[2,4,6,6]
    return %y as "conv2d", %read as "cast_4"
  }
)";

TEST_F(FuseConvNormTest, AppliesAJoinInTheConvolutionThatStoresIt) {
  const auto graph = test::ParseOrDie(WithInputs(kJoin));
  EXPECT_TRUE(Run(*graph, NormLowering::kJoins));
  test::ExpectSameGraph(WithInputs(kJoined + R"(
  %s = mul(%z, %y) : f16[2,4,6,6] @"shortcut"
  %dw = conv2d_grad_weight(%y, %dy) {algorithm="plain",
      weight_shape=[4,4,1,1]} : f16[4,4,1,1] @"conv"
  return %s as "s", %dw as "dw", %m as "m", %v as "v")"),
                        *graph);
  EXPECT_EQ(context_->counters().at("conv_norm_join"), 1);
  EXPECT_EQ(graph->outputs()[0].value->producer()->input(1)->name(), "y");
  ASSERT_EQ(context_->decisions().size(), 1u);
  EXPECT_EQ(context_->decisions()[0].subject, "y");
  EXPECT_EQ(context_->decisions()[0].reason, "applied and stored by fused");
  EXPECT_EQ(context_->decisions()[0].location.path, "bn");
  const auto less = test::ParseOrDie(WithInputs(kJoin));
  EXPECT_FALSE(Run(*less, NormLowering::kPrologues));
}

// A gradient's mask is computed from the stored activation.
TEST_F(FuseConvNormTest, MasksByWhatAJoinStores) {
  std::string text(kJoin);
  text += R"(, %mask as "mask")";
  const auto graph = test::ParseOrDie(WithInputs(text));
  EXPECT_TRUE(Run(*graph, NormLowering::kJoins));
  test::ExpectSameGraph(WithInputs(kJoined + R"(
  %zero = constant() {dtype="f16", shape=[2,4,6,6], value=[0]}
      : f16[2,4,6,6] @"bn"
  %positive = compare(%y, %zero) {direction="gt"} : bool[2,4,6,6] @"bn"
  %s = mul(%z, %y) : f16[2,4,6,6] @"shortcut"
  %dw = conv2d_grad_weight(%y, %dy) {algorithm="plain",
      weight_shape=[4,4,1,1]} : f16[4,4,1,1] @"conv"
  return %s as "s", %dw as "dw", %m as "m", %v as "v",
      %positive as "mask")"),
                        *graph);
}

TEST_F(FuseConvNormTest, AppliesTwoNormalisationsInOneConvolution) {
  const auto graph = test::ParseOrDie(WithInputs(R"(
  %y, %m, %v, %m2, %v2, %mask = batch_norm_train(%x, %gamma, %beta, %r, %mean,
      %variance) {relu=true, residual="norm"} : f16[2,4,6,6], f32[4], f32[4],
      f32[4], f32[4], bool[2,4,6,6] @"bn"
  %z = conv2d(%y, %w) {algorithm="plain"} : f16[2,4,6,6] @"conv"
  return %z as "z", %y as "y")"));
  EXPECT_TRUE(Run(*graph, NormLowering::kJoins));
  const ir::Node& conv = *graph->outputs()[0].value->producer();
  EXPECT_EQ(ir::FusedOps(*conv.body()), "mul,add,mul,add,add,relu,conv2d");
  ASSERT_EQ(conv.num_inputs(), 7u);
  EXPECT_EQ(conv.input(0)->name(), "x");
  EXPECT_EQ(conv.input(4)->name(), "r");
  EXPECT_EQ(graph->outputs()[1].value, conv.output(1));
  // The second scale uses the second normalisation's gamma and variance.
  const ir::Node* scale = conv.input(5)->producer()->input(0)->producer();
  EXPECT_EQ(scale->input(0)->name(), "mean");
  EXPECT_EQ(scale->input(1)->producer()->input(0)->producer()->input(0)->name(),
            "v2");
}

// No convolution can compute the activation if another reader must run before
// it.
TEST_F(FuseConvNormTest, JoinsInNoConvolutionThatWaitsForAReader) {
  const auto graph = test::ParseOrDie(WithInputs(R"(
  %y, %m, %v, %mask = batch_norm_train(%x, %gamma, %beta, %r)
      {relu=true, residual="add"} : f16[2,4,6,6], f32[4], f32[4],
      bool[2,4,6,6] @"bn"
  %early = relu(%y) : f16[2,4,6,6]
  %late = cast(%gamma) {dtype="f16"} : f16[4]
  %spread = broadcast(%late) {dims=[0], shape=[4,4,1,1]} : f16[4,4,1,1]
  %z = conv2d(%y, %spread) {algorithm="plain"} : f16[2,4,6,6] @"conv"
  return %z as "z", %early as "early")"));
  EXPECT_FALSE(Run(*graph, NormLowering::kJoins));
}

constexpr std::string_view kGradient = R"(
  %d = conv2d_grad_input(%dy, %w2) {algorithm="plain", pad=[1,1],
      input_shape=[2,4,6,6]} : f16[2,4,6,6] @"conv2"
  %dx, %dgamma, %dbeta = batch_norm_grad(%d, %x, %gamma, %beta, %mean,
      %variance) {relu=true} : f16[2,4,6,6], f32[4], f32[4] @"bn"
  return %dx as "dx", %dgamma as "dgamma", %dbeta as "dbeta")";

TEST_F(FuseConvNormTest, MasksAndSumsUpADataGradient) {
  const auto graph = test::ParseOrDie(WithInputs(kGradient));
  EXPECT_TRUE(Run(*graph, NormLowering::kGradients));
  test::ExpectSameGraph(WithInputs(R"(
  %e = constant() {dtype="f32", shape=[4], value=[1e-05]} : f32[4] @"bn"
  %ve = add(%variance, %e) : f32[4] @"bn"
  %rstd = rsqrt(%ve) : f32[4] @"bn"
  %dz, %dgamma, %dbeta, %a, %b, %c = fusion(%dy, %w2, %x, %mean, %rstd, %gamma,
      %beta) {kind="library"}
      : f16[2,4,6,6], f32[4], f32[4], f32[4], f32[4], f32[4] @"conv2" {
    %dy = data : f16[2,4,6,6]
    %w2 = data : f16[4,4,3,3]
    %x = data : f16[2,4,6,6]
    %mean = data : f32[4]
    %rstd = data : f32[4]
    %gamma = data : f32[4]
    %beta = data : f32[4]
    %d = conv2d_grad_input(%dy, %w2) {algorithm="fused", pad=[1,1],
        input_shape=[2,4,6,6], result_dtype="f32"} : f32[2,4,6,6]
    %wide = cast(%x) {dtype="f32"} : f32[2,4,6,6]
    %means = broadcast(%mean) {dims=[1], shape=[2,4,6,6]} : f32[2,4,6,6]
    %centered = sub(%wide, %means) : f32[2,4,6,6]
    %rstds = broadcast(%rstd) {dims=[1], shape=[2,4,6,6]} : f32[2,4,6,6]
    %normalized = mul(%centered, %rstds) : f32[2,4,6,6]
    %gammas = broadcast(%gamma) {dims=[1], shape=[2,4,6,6]} : f32[2,4,6,6]
    %scaled = mul(%normalized, %gammas) : f32[2,4,6,6]
    %betas = broadcast(%beta) {dims=[1], shape=[2,4,6,6]} : f32[2,4,6,6]
    %y = add(%scaled, %betas) : f32[2,4,6,6]
    %zero = constant() {dtype="f32", shape=[2,4,6,6], value=[0]} : f32[2,4,6,6]
    %mask = compare(%y, %zero) {direction="gt"} : bool[2,4,6,6]
    %none = constant() {dtype="f32", shape=[2,4,6,6], value=[0]} : f32[2,4,6,6]
    %masked = select(%mask, %d, %none) : f32[2,4,6,6]
    %dz = cast(%masked) {dtype="f16"} : f16[2,4,6,6]
    %dz32 = cast(%dz) {dtype="f32"} : f32[2,4,6,6]
    %product = mul(%dz32, %normalized) : f32[2,4,6,6]
    %dgamma = reduce(%product) {dims=[0,2,3], kind="sum"} : f32[4]
    %dbeta = reduce(%dz32) {dims=[0,2,3], kind="sum"} : f32[4]
    %a = mul(%gamma, %rstd) : f32[4]
    %count = constant() {dtype="f32", shape=[4], value=[-0.013888888888888888]}
        : f32[4]
    %shared = mul(%a, %count) : f32[4]
    %t = mul(%shared, %rstd) : f32[4]
    %b = mul(%t, %dgamma) : f32[4]
    %u = mul(%shared, %dbeta) : f32[4]
    %v = mul(%b, %mean) : f32[4]
    %c = sub(%u, %v) : f32[4]
    return %dz as "conv2d_grad_input", %dgamma as "reduce", %dbeta as "reduce_1",
        %a as "mul_3", %b as "mul_6", %c as "sub_1"
  }
  %cs = broadcast(%c) {dims=[1], shape=[2,4,6,6]} : f32[2,4,6,6] @"bn"
  %bs = broadcast(%b) {dims=[1], shape=[2,4,6,6]} : f32[2,4,6,6] @"bn"
  %xw = cast(%x) {dtype="f32"} : f32[2,4,6,6] @"bn"
  %bx = mul(%xw, %bs) : f32[2,4,6,6] @"bn"
  %bxc = add(%bx, %cs) : f32[2,4,6,6] @"bn"
  %as = broadcast(%a) {dims=[1], shape=[2,4,6,6]} : f32[2,4,6,6] @"bn"
  %dzw = cast(%dz) {dtype="f32"} : f32[2,4,6,6] @"bn"
  %adz = mul(%dzw, %as) : f32[2,4,6,6] @"bn"
  %dxw = add(%adz, %bxc) : f32[2,4,6,6] @"bn"
  %dx = cast(%dxw) {dtype="f16"} : f16[2,4,6,6] @"bn"
  return %dx as "dx", %dgamma as "dgamma", %dbeta as "dbeta")"),
                        *graph);
  EXPECT_EQ(context_->counters().at("conv_norm_grad"), 1);
}

constexpr std::string_view kSum = R"(
  %d = conv2d_grad_input(%dy, %w2) {algorithm="plain", pad=[1,1],
      input_shape=[2,4,6,6]} : f16[2,4,6,6] @"conv2"
  %other = mul(%x, %r) : f16[2,4,6,6] @"other"
  %sum = add(%other, %d) : f16[2,4,6,6] @"conv2"
  return %sum as "sum")";

TEST_F(FuseConvNormTest, AddsADataGradientToAnotherInItsPlace) {
  ExpectBecomes(NormLowering::kStatistics, kSum, R"(
  %other = mul(%x, %r) : f16[2,4,6,6] @"other"
  %sum = fusion(%dy, %w2, %other) {kind="library"} : f16[2,4,6,6] @"conv2"
      graph library {
    %dy = data : f16[2,4,6,6]
    %w2 = data : f16[4,4,3,3]
    %other = data : f16[2,4,6,6]
    %conv2d_grad_input = conv2d_grad_input(%dy, %w2) {algorithm="fused",
        pad=[1,1], input_shape=[2,4,6,6], result_dtype="f32"} : f32[2,4,6,6]
    %cast = cast(%other) {dtype="f32"} : f32[2,4,6,6]
    %add = add(%conv2d_grad_input, %cast) : f32[2,4,6,6]
    %cast_1 = cast(%add) {dtype="f16"} : f16[2,4,6,6]
    return %cast_1 as "conv2d_grad_input"
  }
  return %sum as "sum")");
  EXPECT_EQ(context_->counters().at("conv_accumulate"), 1);
}

TEST_F(FuseConvNormTest, AddsToNothingThatIsNeeded) {
  std::string text(kSum);
  text += R"(, %other as "other")";
  auto graph = test::ParseOrDie(WithInputs(text));
  EXPECT_FALSE(Run(*graph, NormLowering::kStatistics));
  // An input's buffer must not be overwritten.
  text = kSum;
  text.replace(text.find("%other, %d"), 10, "%x, %d");
  graph = test::ParseOrDie(WithInputs(text));
  EXPECT_FALSE(Run(*graph, NormLowering::kStatistics));
  target_.lacking = "fused=conv2d_grad_input,add";
  graph = test::ParseOrDie(WithInputs(kSum));
  EXPECT_FALSE(Run(*graph, NormLowering::kStatistics));
}

TEST_F(FuseConvNormTest, RejectsWhatTheLibraryLacks) {
  target_.lacking = "select";
  EXPECT_EQ(Rejection(NormLowering::kGradients, kGradient),
            "bn-lowering gradients: nvidia-h200 has no convolutions for this "
            "step with the gradient of a normalisation: the library has no "
            "conv2d_grad_input x=2x4x6x6 w=4x4x3x3 stride=1,1 pad=1,1 "
            "dilation=1,1 groups=1 fused=conv2d_grad_input,sub,mul,mul,add,"
            "compare,select,mul,reduce,reduce,mul,mul,mul,mul,mul,mul,sub in "
            "f16");
  target_.lacking = "conv2d,reduce";
  EXPECT_THAT(Rejection(NormLowering::kStatistics, kNorm),
              HasSubstr("nvidia-h200 has no convolutions for this step with "
                        "statistics of their result"));
  target_.lacking = "";
  target_.results = ir::ParseLayout("acdb");
  EXPECT_THAT(Rejection(NormLowering::kStatistics, kNorm),
              HasSubstr("only in other layouts: conv2d x=2x4x6x6"));
}

constexpr char kStatisticsProblem[] =
    "conv2d x=2x4x6x6 w=4x4x1x1 stride=1,1 pad=0,0 dilation=1,1 groups=1 "
    "fused=conv2d,reduce,mul,reduce";

TEST_F(FuseConvNormTest, TakesWhatChoicesNameAndNothingElse) {
  Choose(kStatisticsProblem, "fused");
  const auto graph = test::ParseOrDie(WithInputs(kNorm));
  EXPECT_TRUE(Run(*graph, NormLowering::kKernels));
  EXPECT_EQ(context_->counters().at("conv_statistics"), 1);
  EXPECT_EQ(context_->counters().at("conv_norm_prologue"), 0);
  ASSERT_EQ(context_->decisions().size(), 1u);
  EXPECT_TRUE(context_->decisions()[0].accepted);
}

TEST_F(FuseConvNormTest, LeavesWhatChoicesDecline) {
  Choose(kStatisticsProblem, "none");
  const auto graph = test::ParseOrDie(WithInputs(kNorm));
  EXPECT_FALSE(Run(*graph, NormLowering::kStatistics));
  test::ExpectSameGraph(WithInputs(kNorm), *graph);
  ASSERT_EQ(context_->decisions().size(), 1u);
  EXPECT_FALSE(context_->decisions()[0].accepted);
  EXPECT_EQ(context_->decisions()[0].reason,
            "rejected by autotune results c.txt");
}

TEST_F(FuseConvNormTest, ChoicesDecideAboutJoins) {
  constexpr char kProblem[] =
      "conv2d x=2x4x6x6 w=4x4x1x1 stride=1,1 pad=0,0 dilation=1,1 groups=1 "
      "fused=mul,add,add,relu,conv2d";
  Choose(kProblem, "fused");
  auto graph = test::ParseOrDie(WithInputs(kJoin));
  EXPECT_TRUE(Run(*graph, NormLowering::kKernels));
  EXPECT_EQ(context_->counters().at("chosen_forms"), 1);
  choices_ = {};
  Choose(kProblem, "none");
  graph = test::ParseOrDie(WithInputs(kJoin));
  EXPECT_FALSE(Run(*graph, NormLowering::kJoins));
  test::ExpectSameGraph(WithInputs(kJoin), *graph);
}

TEST_F(FuseConvNormTest, RejectsAnEngineThatTheLibraryHasNot) {
  Choose(kStatisticsProblem, "eng7");
  EXPECT_EQ(Rejection(NormLowering::kKernels, kNorm),
            std::string("autotune results c.txt: ") + kStatisticsProblem +
                " in f16: expected fused, got eng7");
}

// As in cuDNN, convolutions with statistics have no bias. The bias is dropped
// and only added to the running mean.
TEST_F(FuseConvNormTest, MovesABiasToTheMean) {
  target_.lacks_biases = true;
  ExpectBecomes(NormLowering::kStatistics, R"(
  %bias = bias : f16[4]
  %c = conv2d(%x, %w, %bias) {algorithm="plain"} : f16[2,4,6,6] @"conv"
  %y, %m, %v = batch_norm_train(%c, %gamma, %beta)
      : f16[2,4,6,6], f32[4], f32[4] @"bn"
  %dx, %dgamma, %dbeta = batch_norm_grad(%dy, %c, %gamma, %beta, %m, %v)
      : f16[2,4,6,6], f32[4], f32[4] @"bn"
  %running = mul(%m, %m) : f32[4]
  return %y as "y", %dx as "dx", %running as "running", %m as "m")",
                R"(
  %bias = bias : f16[4]
  %c, %conv.fusion_3, %conv.fusion_4 = fusion(%x, %w) {kind="library"}
      : f16[2,4,6,6], f32[4], f32[4] @"conv" )" +
                    std::string(kSumsBody) + R"(
  %y, %m, %v = batch_norm_train(%c, %gamma, %beta)
      : f16[2,4,6,6], f32[4], f32[4] @"bn"
  %bn.cast = cast(%bias) {dtype="f32"} : f32[4] @"bn"
  %bn.add = add(%m, %bn.cast) : f32[4] @"bn"
  %dx, %dgamma, %dbeta = batch_norm_grad(%dy, %c, %gamma, %beta, %m, %v)
      : f16[2,4,6,6], f32[4], f32[4] @"bn"
  %running = mul(%bn.add, %bn.add) : f32[4]
  return %y as "y", %dx as "dx", %running as "running", %bn.add as "m")");
}

TEST_F(FuseConvNormTest, KeepsABiasThatOthersRead) {
  target_.lacks_biases = true;
  EXPECT_THAT(Rejection(NormLowering::kStatistics, R"(
  %bias = bias : f16[4]
  %c = conv2d(%x, %w, %bias) {algorithm="plain"} : f16[2,4,6,6] @"conv"
  %y, %m, %v = batch_norm_train(%c, %gamma, %beta)
      : f16[2,4,6,6], f32[4], f32[4] @"bn"
  return %y as "y", %c as "c")"),
              HasSubstr("fused=conv2d,reduce,mul,reduce with a bias in f16"));
}

// If the library has only some of the fusions, kernels compute the others.
TEST_F(FuseConvNormTest, LeavesWhatTheLibraryLacksToKernels) {
  target_.lacking = "w=4x4x3x3 stride=1,1 pad=1,1 dilation=1,1 groups=1 fused";
  const auto graph = test::ParseOrDie(WithInputs(R"(
  %c = conv2d(%x, %w) : f16[2,4,6,6] @"conv"
  %y, %m, %v, %mask = batch_norm_train(%c, %gamma, %beta, %r)
      {relu=true, residual="add"} : f16[2,4,6,6], f32[4], f32[4],
      bool[2,4,6,6] @"bn"
  %z = conv2d(%y, %w2) {pad=[1,1]} : f16[2,4,6,6] @"conv2"
  %y2, %m2, %v2 = batch_norm_train(%z, %gamma, %beta) : f16[2,4,6,6], f32[4],
      f32[4] @"bn2"
  return %y2 as "y2")"));
  EXPECT_TRUE(Run(*graph, NormLowering::kStatistics));
  ASSERT_EQ(context_->decisions().size(), 2u);
  EXPECT_TRUE(context_->decisions()[0].accepted);
  EXPECT_FALSE(context_->decisions()[1].accepted);
  EXPECT_EQ(context_->decisions()[1].subject, "z");
  EXPECT_EQ(context_->counters().at("conv_statistics"), 1);
}

TEST_F(FuseConvNormTest, LeavesAGradientThatOthersRead) {
  const auto graph = test::ParseOrDie(WithInputs(R"(
  %d = conv2d_grad_input(%dy, %w2) {algorithm="plain", pad=[1,1],
      input_shape=[2,4,6,6]} : f16[2,4,6,6] @"conv2"
  %dx, %dgamma, %dbeta = batch_norm_grad(%d, %x, %gamma, %beta, %mean,
      %variance) {relu=true} : f16[2,4,6,6], f32[4], f32[4] @"bn"
  return %dx as "dx", %d as "d")"));
  EXPECT_FALSE(Run(*graph, NormLowering::kGradients));
}

// --- Whole steps -------------------------------------------------------------

// Fails the test unless a step computes the same with `lowering` as with
// kernels, without rounding: loss, gradients, statistics and updates. Returns
// the program with `lowering`.
codegen::CompiledProgram ExpectSameStep(
    const std::function<std::unique_ptr<ir::Graph>()>& build,
    NormLowering lowering, ir::DType dtype = ir::DType::kF32) {
  const test::ChannelsLastCompiler compiler("nvidia-h200");
  const auto optimized = [&](NormLowering l) {
    codegen::CompileOptions options;
    options.passes.norm_lowering = l;
    options.passes.precision.dtype = dtype;
    options.passes.keep_gradients = true;
    options.verification = passes::Verification::kAll;
    options.plan_only = true;
    return codegen::Compile(build(), codegen::ProgramKind::kTrain, compiler,
                            options);
  };
  const auto plain = optimized(NormLowering::kKernels);
  auto other = optimized(lowering);
  const std::vector<ir::Tensor> inputs = inspect::DrawInputs(*plain.graph, 3);
  const auto expected =
      ir::Interpret(*plain.graph, inputs, ir::EvalMode::kExact);
  const auto actual = ir::Interpret(*other.graph, inputs, ir::EvalMode::kExact);
  EXPECT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const std::string& name = plain.graph->outputs()[i].name;
    EXPECT_TRUE(test::AllClose(actual.at(other.graph->FindOutput(name)),
                               expected[i], 1e-8, 1e-10))
        << name;
  }
  return other;
}

class NormLoweringTest : public testing::TestWithParam<NormLowering> {};

TEST_P(NormLoweringTest, ComputesTheSameStep) {
  const auto other =
      ExpectSameStep([] { return test::SmallResidual(); }, GetParam());
  const auto& counters = other.report.counters;
  const auto count = [&](const char* name) {
    return counters.contains(name) ? counters.at(name) : 0;
  };
  const bool sums = GetParam() >= NormLowering::kGradients;
  EXPECT_EQ(count("conv_statistics"),
            GetParam() == NormLowering::kSeparate ? 0 : 6);
  EXPECT_EQ(count("conv_norm_grad"), sums ? 4 : 0);
  EXPECT_EQ(count("conv_norm_prologue"),
            GetParam() >= NormLowering::kPrologues ? 2 : 0);
  EXPECT_EQ(count("conv_norm_join"),
            GetParam() == NormLowering::kJoins ? 1 : 0);
  const bool adds = GetParam() == NormLowering::kStatistics;
  EXPECT_EQ(count("conv_accumulate"), adds ? 2 : 0);
  int in_place = 0;
  for (const codegen::Step& step : other.plan.steps) {
    if (step.op_class != "conv2d_grad_input") continue;
    const codegen::LibraryCall& call = other.plan.calls[step.index];
    if (call.in_place.empty()) continue;
    EXPECT_EQ(other.plan.buffers[step.args[3]].offset,
              other.plan.buffers[step.args[2]].offset);
    ++in_place;
  }
  EXPECT_EQ(in_place, count("conv_accumulate"));
}

INSTANTIATE_TEST_SUITE_P(Lowerings, NormLoweringTest,
                         ::testing::Values(NormLowering::kSeparate,
                                           NormLowering::kStatistics,
                                           NormLowering::kGradients,
                                           NormLowering::kPrologues,
                                           NormLowering::kJoins),
                         [](const auto& lowering) {
                           return std::string(NormLoweringName(lowering.param));
                         });

// VGG's convolutions have biases.
TEST(NormLoweringOfVgg, ComputesTheSameStep) {
  const auto other = ExpectSameStep(
      [] { return test::NarrowVgg16Bn(models::Phase::kTrain, 2); },
      NormLowering::kPrologues);
  EXPECT_EQ(other.report.counters.at("conv_statistics"), 13);
  EXPECT_EQ(other.report.counters.at("conv_norm_prologue"), 8);
}

// One of the fused block ends has two normalisations, the other an identity
// shortcut.
TEST(NormLoweringOfBottlenecks, ComputesTheSameStep) {
  const auto other = ExpectSameStep([] { return test::SmallBottlenecks(); },
                                    NormLowering::kJoins);
  EXPECT_EQ(other.report.counters.at("conv_norm_join"), 2);
  std::set<std::string> kinds;
  for (const codegen::LibraryCall& call : other.plan.calls) {
    if (call.body == nullptr || call.op != ir::OpKind::kConv2d) continue;
    const std::string ops = ir::FusedOps(*call.body);
    kinds.insert(ops.substr(0, ops.find("conv2d")));
  }
  EXPECT_THAT(kinds, testing::ElementsAre("", "mul,add,add,relu,",
                                          "mul,add,mul,add,add,relu,",
                                          "mul,add,relu,"));
}

// In f16, kAuto takes what the library has, except statistics of the first
// convolution, which has 3 channels.
TEST(AutomaticNormLowering, ComputesTheSameStep) {
  const auto build = [] {
    return test::NarrowVgg16Bn(models::Phase::kTrain, 2, 2);
  };
  const auto kernels = ExpectSameStep(build, NormLowering::kAuto);
  EXPECT_FALSE(kernels.report.counters.contains("conv_statistics"));
  const auto other =
      ExpectSameStep(build, NormLowering::kAuto, ir::DType::kF16);
  EXPECT_EQ(other.report.counters.at("conv_statistics"), 12);
  EXPECT_EQ(other.report.counters.at("conv_norm_grad"), 8);
  EXPECT_FALSE(other.report.counters.contains("conv_norm_prologue"));
}

TEST(NormLoweringName, RoundTripsAndRejectsOtherWords) {
  for (const char* name : {"auto", "separate", "kernels", "statistics",
                           "gradients", "prologues", "joins"}) {
    EXPECT_EQ(NormLoweringName(ParseNormLowering(name)), name);
  }
  EXPECT_THROW(ParseNormLowering("vendor"), Error);
}

}  // namespace
}  // namespace fusor::passes
