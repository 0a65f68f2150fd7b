#include <gtest/gtest.h>

#include "ir/builder.h"
#include "models/model.h"
#include "passes/passes.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"

namespace fusor::passes {
namespace {

constexpr std::string_view kInputs = R"(graph g {
  %x = data : f32[2,3,4,4]
  %x2 = data : f32[2,3,4,4]
  %gamma = norm_scale : f32[3]
  %beta = norm_shift : f32[3]
  %gamma2 = norm_scale : f32[3]
  %beta2 = norm_shift : f32[3]
)";

std::string Text(std::string_view statements) {
  return std::string(kInputs) + std::string(statements) + "\n}";
}

class FuseNormActivationTest : public testing::Test {
 protected:
  bool Run(ir::Graph& graph) { return FuseNormActivation(graph, context_); }

  void ExpectFused(std::string_view before, std::string_view expected) {
    const auto graph = test::ParseOrDie(Text(before));
    EXPECT_TRUE(Run(*graph));
    test::ExpectSameGraph(Text(expected), *graph, test::Names::kCompare);
    EXPECT_FALSE(Run(*graph));
  }

  void ExpectKept(std::string_view statements, std::string_view reason) {
    const auto graph = test::ParseOrDie(Text(statements));
    EXPECT_FALSE(Run(*graph));
    test::ExpectSameGraph(Text(statements), *graph);
    ASSERT_EQ(context_.decisions().size(), 1u);
    EXPECT_FALSE(context_.decisions()[0].accepted);
    EXPECT_EQ(context_.decisions()[0].reason, reason);
  }

  void ExpectCounts(int64_t bn_relu, int64_t bn_add_relu, int64_t dual) {
    EXPECT_EQ(context_.counters().at("bn_relu"), bn_relu);
    EXPECT_EQ(context_.counters().at("bn_add_relu"), bn_add_relu);
    EXPECT_EQ(context_.counters().at("dual_bn_add_relu"), dual);
  }

  test::BareTarget target_;
  PassContext context_{target_, {}};
};

TEST_F(FuseNormActivationTest, TakesARelu) {
  ExpectFused(R"(
  %n, %mean, %var = batch_norm_train(%x, %gamma, %beta) {epsilon=0.001}
      : f32[2,3,4,4], f32[3], f32[3] @"bn"
  %stat = neg(%mean) : f32[3]
  %y = relu(%n) : f32[2,3,4,4] @"relu"
  return %y as "y", %stat as "stat", %var as "var")",
              R"(
  %y, %mean, %var = batch_norm_train(%x, %gamma, %beta)
      {epsilon=0.001, relu=true} : f32[2,3,4,4], f32[3], f32[3] @"bn"
  %stat = neg(%mean) : f32[3]
  return %y as "y", %stat as "stat", %var as "var")");
  ExpectCounts(1, 0, 0);
}

TEST_F(FuseNormActivationTest, TakesAResidualOnEitherSide) {
  for (const std::string sum : {"add(%n, %x2)", "add(%x2, %n)"}) {
    SCOPED_TRACE(sum);
    ExpectFused(R"(
  %n, %mean, %var = batch_norm_train(%x, %gamma, %beta)
      : f32[2,3,4,4], f32[3], f32[3] @"bn"
  %s = )" + sum + R"( : f32[2,3,4,4]
  %y = relu(%s) : f32[2,3,4,4]
  return %y as "y", %mean as "mean")",
                R"(
  %y, %mean, %var, %y_mask = batch_norm_train(%x, %gamma, %beta, %x2)
      {relu=true, residual="add"}
      : f32[2,3,4,4], f32[3], f32[3], bool[2,3,4,4] @"bn"
  return %y as "y", %mean as "mean")");
  }
  ExpectCounts(0, 2, 0);
}

// The main branch is the one computed later.
TEST_F(FuseNormActivationTest, TakesTwoNormalisedOperandsMainBranchFirst) {
  for (const std::string sum : {"add(%main, %short)", "add(%short, %main)"}) {
    SCOPED_TRACE(sum);
    ExpectFused(R"(
  %short, %mean2, %var2 = batch_norm_train(%x2, %gamma2, %beta2)
      : f32[2,3,4,4], f32[3], f32[3] @"downsample.1"
  %main, %mean, %var = batch_norm_train(%x, %gamma, %beta)
      : f32[2,3,4,4], f32[3], f32[3] @"bn3"
  %s = )" + sum + R"( : f32[2,3,4,4]
  %y = relu(%s) : f32[2,3,4,4]
  return %y as "y", %mean2 as "mean2", %var as "var")",
                R"(
  %y, %mean, %var, %mean2, %var2, %y_mask =
      batch_norm_train(%x, %gamma, %beta, %x2, %gamma2, %beta2)
      {relu=true, residual="norm"}
      : f32[2,3,4,4], f32[3], f32[3], f32[3], f32[3], bool[2,3,4,4] @"bn3"
  return %y as "y", %mean2 as "mean2", %var as "var")");
  }
  ExpectCounts(0, 2, 2);
}

TEST_F(FuseNormActivationTest, MovesBeforeReadersOfTheStatistics) {
  ExpectFused(R"(
  %n, %mean, %var = batch_norm_train(%x, %gamma, %beta)
      : f32[2,3,4,4], f32[3], f32[3] @"bn"
  %stat = neg(%mean) : f32[3]
  %r = exp(%x2) : f32[2,3,4,4]
  %s = add(%n, %r) : f32[2,3,4,4]
  %y = relu(%s) : f32[2,3,4,4]
  return %y as "y", %stat as "stat")",
              R"(
  %r = exp(%x2) : f32[2,3,4,4]
  %y, %mean, %var, %y_mask = batch_norm_train(%x, %gamma, %beta, %r)
      {relu=true, residual="add"}
      : f32[2,3,4,4], f32[3], f32[3], bool[2,3,4,4] @"bn"
  %stat = neg(%mean) : f32[3]
  return %y as "y", %stat as "stat")");
}

TEST_F(FuseNormActivationTest, KeepsTwoEpsilonsApart) {
  ExpectFused(R"(
  %short, %mean2, %var2 = batch_norm_train(%x2, %gamma2, %beta2)
      {epsilon=0.001} : f32[2,3,4,4], f32[3], f32[3]
  %main, %mean, %var = batch_norm_train(%x, %gamma, %beta)
      : f32[2,3,4,4], f32[3], f32[3]
  %s = add(%main, %short) : f32[2,3,4,4]
  %y = relu(%s) : f32[2,3,4,4]
  return %y as "y")",
              R"(
  %short, %mean2, %var2 = batch_norm_train(%x2, %gamma2, %beta2)
      {epsilon=0.001} : f32[2,3,4,4], f32[3], f32[3]
  %y, %mean, %var, %y_mask = batch_norm_train(%x, %gamma, %beta, %short)
      {relu=true, residual="add"}
      : f32[2,3,4,4], f32[3], f32[3], bool[2,3,4,4]
  return %y as "y")");
  ExpectCounts(0, 1, 0);
}

TEST_F(FuseNormActivationTest, RejectsAnotherReaderOfTheNormalisedValue) {
  ExpectKept(R"(
  %n, %mean, %var = batch_norm_train(%x, %gamma, %beta)
      : f32[2,3,4,4], f32[3], f32[3]
  %y = relu(%n) : f32[2,3,4,4]
  %z = neg(%n) : f32[2,3,4,4]
  return %y as "y", %z as "z")",
             "n has other uses");
}

TEST_F(FuseNormActivationTest, RejectsANormalisedValueThatIsAnOutput) {
  ExpectKept(R"(
  %n, %mean, %var = batch_norm_train(%x, %gamma, %beta)
      : f32[2,3,4,4], f32[3], f32[3]
  %y = relu(%n) : f32[2,3,4,4]
  return %y as "y", %n as "z")",
             "n has other uses");
}

TEST_F(FuseNormActivationTest, RejectsANormalisedValueAddedToItself) {
  ExpectKept(R"(
  %n, %mean, %var = batch_norm_train(%x, %gamma, %beta)
      : f32[2,3,4,4], f32[3], f32[3]
  %s = add(%n, %n) : f32[2,3,4,4]
  %y = relu(%s) : f32[2,3,4,4]
  return %y as "y")",
             "the normalised operand of the sum has other uses");
}

TEST_F(FuseNormActivationTest, RejectsASumWithOtherReaders) {
  ExpectKept(R"(
  %n, %mean, %var = batch_norm_train(%x, %gamma, %beta)
      : f32[2,3,4,4], f32[3], f32[3]
  %s = add(%n, %x2) : f32[2,3,4,4]
  %y = relu(%s) : f32[2,3,4,4]
  return %y as "y", %s as "s")",
             "s has other uses");
}

TEST_F(FuseNormActivationTest, RejectsAResidualComputedFromTheStatistics) {
  ExpectKept(R"(
  %n, %mean, %var = batch_norm_train(%x, %gamma, %beta)
      : f32[2,3,4,4], f32[3], f32[3]
  %r = broadcast(%mean) {dims=[1], shape=[2,3,4,4]} : f32[2,3,4,4]
  %s = add(%n, %r) : f32[2,3,4,4]
  %y = relu(%s) : f32[2,3,4,4]
  return %y as "y")",
             "r depends on the statistics");
}

// The second normalisation reads the statistics of the first, so they cannot be
// one node. The first cannot have the second as its residual, since that
// depends on it. Thus the second has the first as its residual.
TEST_F(FuseNormActivationTest, SplitsADualWhoseBranchesDependOnEachOther) {
  ExpectFused(R"(
  %a, %mean, %var = batch_norm_train(%x, %gamma, %beta)
      : f32[2,3,4,4], f32[3], f32[3]
  %shift = broadcast(%mean) {dims=[1], shape=[2,3,4,4]} : f32[2,3,4,4]
  %x3 = sub(%x2, %shift) : f32[2,3,4,4]
  %b, %mean2, %var2 = batch_norm_train(%x3, %gamma2, %beta2)
      : f32[2,3,4,4], f32[3], f32[3]
  %s = add(%a, %b) : f32[2,3,4,4]
  %y = relu(%s) : f32[2,3,4,4]
  return %y as "y")",
              R"(
  %a, %mean, %var = batch_norm_train(%x, %gamma, %beta)
      : f32[2,3,4,4], f32[3], f32[3]
  %shift = broadcast(%mean) {dims=[1], shape=[2,3,4,4]} : f32[2,3,4,4]
  %x3 = sub(%x2, %shift) : f32[2,3,4,4]
  %y, %mean2, %var2, %y_mask = batch_norm_train(%x3, %gamma2, %beta2, %a)
      {relu=true, residual="add"}
      : f32[2,3,4,4], f32[3], f32[3], bool[2,3,4,4]
  return %y as "y")");
  ExpectCounts(0, 1, 0);
}

TEST_F(FuseNormActivationTest, IgnoresWhatHasNoNormalisation) {
  const std::string text = Text(R"(
  %s = add(%x, %x2) : f32[2,3,4,4]
  %y = relu(%s) : f32[2,3,4,4]
  %z = relu(%x) : f32[2,3,4,4]
  return %y as "y", %z as "z")");
  const auto graph = test::ParseOrDie(text);
  EXPECT_FALSE(Run(*graph));
  EXPECT_TRUE(context_.decisions().empty());
}

TEST_F(FuseNormActivationTest, StopsWhenOutOfFuel) {
  PassOptions options;
  options.fuel["fuse_norm_activation"] = 10;
  PassContext context(target_, options);
  models::ModelOptions model_options;
  model_options.batch = 2;
  model_options.image_size = 32;
  const models::Model model =
      models::BuildModel("resnet50-v1.5", models::Phase::kTrain, model_options);
  EXPECT_TRUE(FuseNormActivation(*model.graph, context));
  EXPECT_EQ(
      context.counters().at("bn_relu") + context.counters().at("bn_add_relu"),
      10);
}

// There are 53 normalisations: 33 before a ReLU, 12 before an addition of an
// identity shortcut, and 4 pairs in the first block of a stage.
TEST_F(FuseNormActivationTest, FindsEveryPatternOfResNet50) {
  for (const std::string arch :
       {"resnet50-v1.5", "resnet50-v1b", "resnet50-v1"}) {
    SCOPED_TRACE(arch);
    PassContext context(target_, {});
    models::ModelOptions options;
    options.batch = 2;
    options.image_size = 32;
    const models::Model model =
        models::BuildModel(arch, models::Phase::kTrain, options);
    EXPECT_TRUE(FuseNormActivation(*model.graph, context));
    EXPECT_EQ(context.counters().at("bn_relu"), 33);
    EXPECT_EQ(context.counters().at("bn_add_relu"), 16);
    EXPECT_EQ(context.counters().at("dual_bn_add_relu"), 4);
    int norms = 0;
    for (const auto& node : model.graph->nodes()) {
      norms += node->op_name() == "batch_norm_train" ? 1 : 0;
      EXPECT_NE(node->op_name(), "relu");
    }
    EXPECT_EQ(norms, 49);
    for (const Decision& decision : context.decisions()) {
      EXPECT_TRUE(decision.accepted) << decision.reason;
    }
  }
}

}  // namespace
}  // namespace fusor::passes
