#include "models/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/support/error.h"
#include "ir/target/cost.h"

namespace fusor::models {
namespace {

using ::testing::HasSubstr;

struct Golden {
  const char* arch;
  int64_t parameters;
  int64_t tensors;
  int64_t macs;  // per image of 224 x 224; 0: not published
};

class GoldenModel : public ::testing::TestWithParam<Golden> {};

TEST_P(GoldenModel, HasPublishedParametersAndMacs) {
  const Model model = BuildModel(GetParam().arch, Phase::kTrain, {.batch = 1});
  const ParameterCount count = CountParameters(*model.graph);
  EXPECT_EQ(count.parameters, GetParam().parameters);
  if (GetParam().tensors != 0) {
    EXPECT_EQ(count.tensors, GetParam().tensors);
  }
  if (GetParam().macs != 0) {
    EXPECT_EQ(ir::GraphMacs(*model.graph), GetParam().macs);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, GoldenModel,
    ::testing::Values(Golden{"resnet50", 25557032, 161, 4089184256},
                      Golden{"resnet50-v1b", 25557032, 161, 4089184256},
                      Golden{"resnet50-v1", 25575912, 0, 3857973248},
                      Golden{"vgg16", 138357544, 32, 15470264320},
                      Golden{"vgg16-bn", 138365992, 58, 15470264320},
                      Golden{"resnet18", 11689512, 62, 0},
                      Golden{"resnet34", 21797672, 110, 0},
                      Golden{"resnet101", 44549160, 314, 0},
                      Golden{"resnet152", 60192808, 467, 0},
                      Golden{"resnext50-32x4d", 25028904, 161, 4230479872},
                      Golden{"resnext101-32x4d", 44177704, 314, 0},
                      // 33 C + 16 more for each block of C channels.
                      Golden{"se-resnext50-32x4d", 25527592, 225, 0},
                      Golden{"se-resnext101-32x4d", 45251128, 446, 0}),
    [](const auto& golden) {
      std::string name = golden.param.arch;
      for (char& c : name) {
        if (c == '-') c = '_';
      }
      return name;
    });

TEST(Model, Resnet20HasTheProtocolsParameters) {
  const Model model = BuildModel("resnet20-cifar", Phase::kTrain,
                                 {.image_size = 32, .num_classes = 10});
  EXPECT_EQ(CountParameters(*model.graph).parameters, 272474);
}

TEST(Model, EvalTakesTheTrainingStateByName) {
  const Model train = BuildModel("resnet18", Phase::kTrain, {.batch = 2});
  const Model eval = BuildModel("resnet18", Phase::kEval, {.batch = 2});
  int64_t state = 0;
  for (const ir::Input& input : eval.graph->inputs()) {
    if (!IsState(input.role)) continue;
    ++state;
    const ir::Value* twin = train.graph->FindInput(input.value->name());
    ASSERT_NE(twin, nullptr) << input.value->name();
    EXPECT_EQ(twin->type(), input.value->type());
  }
  EXPECT_EQ(state, 62 + 2 * 20);
}

TEST(Model, RunningStatisticsAreAliasedOutputs) {
  const Model model = BuildModel("resnet18", Phase::kTrain, {.batch = 2});
  const int output = model.graph->FindOutput("bn1.running_var");
  ASSERT_GE(output, 0);
  const int alias = model.graph->outputs()[output].alias;
  EXPECT_EQ(model.graph->input(alias)->name(), "bn1.running_var");
}

TEST(Model, RejectsUnknownArchWithTheNearestName) {
  try {
    BuildModel("resnet5O", Phase::kTrain, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    EXPECT_THAT(e.what(), HasSubstr("did you mean resnet50?"));
  }
}

TEST(Model, RejectsImagesThatAreTooSmall) {
  try {
    BuildModel("vgg16", Phase::kTrain, {.image_size = 16});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kGraph);
    EXPECT_THAT(e.what(), HasSubstr("image size 16"));
  }
}

TEST(Model, DropoutOnlyWhenTraining) {
  const Model train = BuildModel("vgg16", Phase::kTrain, {.batch = 1});
  const Model eval = BuildModel("vgg16", Phase::kEval, {.batch = 1});
  EXPECT_NE(train.graph->FindInput("random_key"), nullptr);
  EXPECT_EQ(eval.graph->FindInput("random_key"), nullptr);
}

}  // namespace
}  // namespace fusor::models
