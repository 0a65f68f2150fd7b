// Checks how the graph changes images: see ModelOptions::augment.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "ir/interpreter/interpreter.h"
#include "ir/support/error.h"
#include "models/model.h"
#include "runtime/initial_values.h"
#include "tests/testing/numeric.h"

namespace fusor::models {
namespace {

using GivenInputs = std::map<std::string, std::vector<double>>;

constexpr int64_t kSamples = 3;
constexpr int64_t kSide = 8;
// Whole levels, so that bytes can have the mean colour.
constexpr std::array<double, 3> kMean = {100, 110, 120};

ModelOptions AugmentOptions(bool augment, bool mixup) {
  return {.batch = kSamples,
          .image_size = kSide,
          .num_classes = 5,
          .mean = kMean,
          .mixup = mixup,
          .augment = augment};
}

double LossOf(const ModelOptions& options, const GivenInputs& given) {
  const Model model = BuildModel("resnet20-cifar", Phase::kTrain, options);
  std::vector<ir::Tensor> inputs;
  for (const ir::Input& input : model.graph->inputs()) {
    const ir::TensorType& type = input.value->type();
    const std::string name(input.value->name());
    if (input.role == ir::InputRole::kData || name == "mixup") {
      inputs.push_back({type, given.at(name)});
      continue;
    }
    const auto values = runtime::InitialValues(input.attrs, type.num_elements(),
                                               name, /*seed=*/1);
    inputs.push_back({type, {values.begin(), values.end()}});
  }
  const auto results =
      ir::Interpret(*model.graph, inputs, ir::EvalMode::kExact);
  return results[static_cast<size_t>(model.graph->FindOutput("loss"))].data[0];
}

// Even levels from 0 to 254.
std::vector<double> EvenLevels() {
  std::vector<double> images =
      test::RandomTensor({ir::DType::kU8, {kSamples, kSide, kSide, 3}, {}},
                         /*seed=*/3, 0, 127)
          .data;
  for (double& level : images) level = 2 * std::floor(level);
  return images;
}

// Maps that give whole levels, some of them out of range.
const std::vector<double> kColours = {
    0, 1, 0, 0,  0.5, 0, 0.5, 0,   0, 0, -1,  255,  // sample 0
    1, 0, 0, 90, 0,   1, 0,   -90, 0, 0, 0.5, 0,    // sample 1
    1, 0, 0, 0,  0,   1, 0,   0,   0, 0, 1,   0};   // sample 2
// Left, top, right, bottom.
const std::vector<double> kBoxes = {0, 0, 0, 0, 2, 1, 5, 8, 7, 0, 8, 2};

// The definition.
std::vector<double> Augmented(const std::vector<double>& images) {
  std::vector<double> out = images;
  for (int64_t i = 0; i < static_cast<int64_t>(images.size()) / 3; ++i) {
    const int64_t n = i / (kSide * kSide);
    const auto y = static_cast<double>(i / kSide % kSide);
    const auto x = static_cast<double>(i % kSide);
    const double* box = &kBoxes[n * 4];
    const bool inside = x >= box[0] && x < box[2] && y >= box[1] && y < box[3];
    for (int64_t c = 0; c < 3; ++c) {
      const double* row = &kColours[n * 12 + c * 4];
      double level = row[3];
      for (int64_t k = 0; k < 3; ++k) level += row[k] * images[i * 3 + k];
      out[i * 3 + c] = inside ? kMean[c] : std::clamp(level, 0.0, 255.0);
    }
  }
  return out;
}

class AugmentTest : public ::testing::TestWithParam<bool> {};

TEST_P(AugmentTest, ColoursAreMappedAndABoxIsErasedBeforeMixing) {
  const bool mixup = GetParam();
  const std::vector<double> images = EvenLevels();
  GivenInputs given = {
      {"images", Augmented(images)}, {"labels", {4, 0, 2}}, {"mixup", {0.3}}};
  const double expected =
      LossOf(AugmentOptions(/*augment=*/false, mixup), given);
  given["images"] = images;
  const double unchanged =
      LossOf(AugmentOptions(/*augment=*/false, mixup), given);
  given["augment_colour"] = kColours;
  given["augment_box"] = kBoxes;
  EXPECT_NEAR(LossOf(AugmentOptions(/*augment=*/true, mixup), given), expected,
              1e-9);
  EXPECT_GT(std::abs(expected - unchanged), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Mixup, AugmentTest, ::testing::Bool());

TEST(Augment, EvaluationDoesNotAugment) {
  const Model model =
      BuildModel("resnet20-cifar", Phase::kEval,
                 AugmentOptions(/*augment=*/true, /*mixup=*/false));
  EXPECT_EQ(model.graph->FindInput("augment_colour"), nullptr);
  EXPECT_EQ(model.graph->FindInput("augment_box"), nullptr);
}

TEST(Augment, ImagesMustBeLevels) {
  ModelOptions options = AugmentOptions(/*augment=*/true, /*mixup=*/false);
  options.input = InputFormat::kF32Nchw;
  try {
    BuildModel("resnet20-cifar", Phase::kTrain, options);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    EXPECT_STREQ(error.what(), "images: expected levels to augment, got f32");
  }
}

}  // namespace
}  // namespace fusor::models
