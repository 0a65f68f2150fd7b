#include "passes/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/support/error.h"
#include "models/model.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"

namespace fusor::passes {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kModel = R"(graph g {
  %x = data : f32[2,3,4,4]
  %w = weight : f32[3,3,1,1]
  %gamma = norm_scale : f32[3]
  %beta = norm_shift : f32[3]
  %c = conv2d(%x, %w) : f32[2,3,4,4]
  %n, %mean, %var = batch_norm_train(%c, %gamma, %beta)
      : f32[2,3,4,4], f32[3], f32[3]
  %y = relu(%n) : f32[2,3,4,4]
  %unused = exp(%x) : f32[2,3,4,4]
  %loss = reduce(%y) {dims=[0,1,2,3], kind="sum"} : f32[]
  return %loss as "loss"
})";

class PipelineTest : public testing::Test {
 protected:
  std::vector<std::string> Names(PassContext& context) {
    std::vector<std::string> names;
    for (const PassTrace& trace : context.traces()) {
      names.push_back(trace.name);
    }
    return names;
  }

  test::BareTarget target_;
  PassOptions options_;
  const RunnerOptions verify_{.verification = passes::Verification::kPasses,
                              .observer = {}};
};

TEST_F(PipelineTest, EveryStageIsContiguousAndEveryPassHasAReason) {
  Stage stage = Stage::kForward;
  for (const PassEntry& entry : Pipeline()) {
    EXPECT_GE(entry.stage, stage) << entry.name;
    stage = entry.stage;
    EXPECT_NE(entry.run, nullptr) << entry.name;
    EXPECT_FALSE(entry.reason.empty()) << entry.name;
  }
  EXPECT_EQ(stage, Stage::kOptimize);
}

TEST_F(PipelineTest, RunsTheStagesOfATrainingStep) {
  const auto graph = test::ParseOrDie(kModel);
  PassContext context(target_, options_);
  EXPECT_TRUE(RunPipeline(*graph, context, Stage::kForward, verify_));
  EXPECT_THAT(Names(context), ElementsAre("simplify", "fuse_norm_activation",
                                          "rewrite_concats"));
  EXPECT_EQ(context.counters().at("bn_relu"), 1);
  EXPECT_EQ(context.traces()[0].nodes_before, 5u);
  EXPECT_EQ(context.traces()[0].nodes_after, 4u);
  EXPECT_TRUE(context.traces()[0].changed);
  EXPECT_TRUE(RunPipeline(*graph, context, Stage::kTraining, verify_));
  EXPECT_GE(graph->FindOutput("w"), 0);
  EXPECT_GE(graph->FindOutput("momentum/gamma"), 0);
  EXPECT_LT(graph->FindOutput("grad/w"), 0);
  EXPECT_TRUE(RunPipeline(*graph, context, Stage::kOptimize, verify_));
  int index = -1;
  for (const PassTrace& trace : context.traces()) {
    EXPECT_GT(trace.index, index);
    EXPECT_EQ(trace.name, Pipeline()[trace.index].name);
    index = trace.index;
  }
}

TEST_F(PipelineTest, SkipsFusionPassesWithFusionOff) {
  options_.fusion = false;
  const auto graph = test::ParseOrDie(kModel);
  PassContext context(target_, options_);
  RunPipeline(*graph, context, Stage::kForward, verify_);
  EXPECT_THAT(Names(context), ElementsAre("simplify", "rewrite_concats"));
}

TEST_F(PipelineTest, SkipsDisabledPasses) {
  options_.disabled = {"simplify"};
  const auto graph = test::ParseOrDie(kModel);
  PassContext context(target_, options_);
  RunPipeline(*graph, context, Stage::kForward, verify_);
  EXPECT_THAT(Names(context),
              ElementsAre("fuse_norm_activation", "rewrite_concats"));
}

TEST_F(PipelineTest, RunsOnlyTheNamedPasses) {
  options_.only = {"fuse_norm_activation"};
  const auto graph = test::ParseOrDie(kModel);
  PassContext context(target_, options_);
  RunPipeline(*graph, context, Stage::kForward, verify_);
  EXPECT_THAT(Names(context), ElementsAre("fuse_norm_activation"));
}

TEST_F(PipelineTest, LimitsAPassByItsFuel) {
  options_.fuel["fuse_norm_activation"] = 0;
  const auto graph = test::ParseOrDie(kModel);
  PassContext context(target_, options_);
  RunPipeline(*graph, context, Stage::kForward, verify_);
  EXPECT_FALSE(context.traces()[1].changed);
}

TEST_F(PipelineTest, NamesTheNearestPassForAnUnknownOne) {
  PassOptions disabled, only, fuel;
  disabled.disabled = {"fuse_norm_activaton"};
  only.only = {"fuse_norm_activaton"};
  fuel.fuel["fuse_norm_activaton"] = 1;
  for (const PassOptions& options : {disabled, only, fuel}) {
    const auto graph = test::ParseOrDie(kModel);
    PassContext context(target_, options);
    try {
      RunPipeline(*graph, context, Stage::kForward, verify_);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_STREQ(error.what(),
                   "unknown pass fuse_norm_activaton; did you mean "
                   "fuse_norm_activation?");
    }
  }
}

TEST_F(PipelineTest, ShowsTheGraphAfterEachPass) {
  const auto graph = test::ParseOrDie(kModel);
  PassContext context(target_, options_);
  std::vector<std::string> seen;
  RunnerOptions options{.verification = passes::Verification::kPasses,
                        .observer = {}};
  options.observer = [&](const PassTrace& trace, const ir::Graph& g) {
    seen.push_back(std::to_string(trace.index) + " " + trace.name +
                   (trace.changed ? " changed " : " kept ") +
                   std::to_string(g.nodes().size()));
  };
  RunPipeline(*graph, context, Stage::kForward, options);
  EXPECT_THAT(seen, ElementsAre("0 simplify changed 4",
                                "1 fuse_norm_activation changed 3",
                                "2 rewrite_concats kept 3"));
}

TEST_F(PipelineTest, RunsPassesByNameInTheOrderGiven) {
  const auto graph = test::ParseOrDie(kModel);
  options_.disabled = {"autodiff"};
  PassContext context(target_, options_);
  const std::vector<std::string> names{"fuse_norm_activation", "simplify",
                                       "autodiff", "simplify"};
  EXPECT_TRUE(RunPasses(*graph, context, names, verify_));
  EXPECT_THAT(Names(context),
              ElementsAre("fuse_norm_activation", "simplify", "simplify"));
  EXPECT_EQ(context.traces()[2].pipeline, "named");
  EXPECT_EQ(context.traces()[2].index, 2);
  EXPECT_FALSE(context.traces()[2].changed);
}

TEST_F(PipelineTest, RunsNoneOfThePassesWhenOneIsUnknown) {
  const auto graph = test::ParseOrDie(kModel);
  PassContext context(target_, options_);
  const std::vector<std::string> names{"simplify", "simplyfy"};
  EXPECT_THROW(RunPasses(*graph, context, names, verify_), Error);
  EXPECT_TRUE(context.traces().empty());
}

// Autodiff rejects a graph without a loss, which is a user error.
TEST_F(PipelineTest, ShowsTheGraphOfAPassThatRejectedIt) {
  const auto graph = test::ParseOrDie(
      "graph g {\n  %w = weight : f32[2]\n  return %w as \"y\"\n}");
  PassContext context(target_, options_);
  std::vector<std::string> errors;
  RunnerOptions options{.verification = passes::Verification::kPasses,
                        .observer = {}};
  options.observer = [&](const PassTrace& trace, const ir::Graph&) {
    errors.push_back(trace.pipeline + " " + trace.name + ": " + trace.error);
  };
  try {
    RunPipeline(*graph, context, Stage::kTraining, options);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    EXPECT_THAT(errors,
                ElementsAre("training autodiff: " + std::string(error.what())));
  }
}

// A graph that is already invalid is reported after the next pass that changes
// it.
TEST_F(PipelineTest, NamesThePassAfterWhichVerificationFailed) {
  const auto graph = test::ParseOrDie(kModel);
  ir::Value* x = graph->FindInput("x");
  x->set_type({ir::DType::kF64, x->type().shape, {}});
  PassContext context(target_, options_);
  std::string shown;
  RunnerOptions options{.verification = passes::Verification::kPasses,
                        .observer = {}};
  options.observer = [&](const PassTrace& trace, const ir::Graph&) {
    shown = trace.error;
  };
  const std::vector<std::string> names{"drop_collectives", "simplify"};
  try {
    RunPasses(*graph, context, names, options);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.what(),
                HasSubstr("graph g: verification failed after simplify (pass "
                          "1 of named): graph g: %"));
    EXPECT_EQ(shown, error.what());
  }
}

// Verification checks that each pass leaves the graph valid and reports whether
// it changed it.
TEST_F(PipelineTest, CarriesResNet50ThroughEveryStageVerified) {
  for (const bool fusion : {true, false}) {
    SCOPED_TRACE(fusion);
    options_.fusion = fusion;
    models::ModelOptions model_options;
    model_options.batch = 2;
    model_options.image_size = 64;
    const models::Model model = models::BuildModel(
        "resnet50-v1.5", models::Phase::kTrain, model_options);
    PassContext context(target_, options_);
    for (const Stage stage :
         {Stage::kForward, Stage::kTraining, Stage::kOptimize}) {
      RunPipeline(*model.graph, context, stage, verify_);
    }
    int64_t updates = 0;
    for (const ir::Output& output : model.graph->outputs()) {
      updates += output.alias >= 0 &&
                 IsParameter(model.graph->inputs()[output.alias].role);
    }
    EXPECT_EQ(updates, 161);
  }
}

}  // namespace
}  // namespace fusor::passes
