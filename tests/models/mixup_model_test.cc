// Mixup in the graph against its definition.

#include <gtest/gtest.h>

#include <algorithm>

#include "ir/interpreter/interpreter.h"
#include "models/model.h"
#include "runtime/initial_values.h"
#include "tests/testing/numeric.h"

namespace fusor::models {
namespace {

constexpr int64_t kBatch = 3;
constexpr double kShare = 0.3;

class MixupTest : public ::testing::Test {
 protected:
  // The loss for labels, of images that are mixed by the graph or beforehand.
  static double Loss(bool mixup, const std::vector<double>& images,
                     const std::vector<double>& labels) {
    const ModelOptions options{.batch = kBatch,
                               .image_size = 8,
                               .num_classes = 5,
                               .input = InputFormat::kF32Nchw,
                               .label_smoothing = 0.1,
                               .mixup = mixup};
    const Model model = BuildModel("resnet20-cifar", Phase::kTrain, options);
    std::vector<ir::Tensor> inputs;
    for (const ir::Input& input : model.graph->inputs()) {
      const ir::TensorType& type = input.value->type();
      const std::string name(input.value->name());
      if (name == "images") {
        inputs.push_back({type, images});
      } else if (name == "labels") {
        inputs.push_back({type, labels});
      } else if (name == "mixup") {
        inputs.push_back({type, {kShare}});
      } else {
        const auto values = runtime::InitialValues(
            input.attrs, type.num_elements(), name, /*seed=*/1);
        inputs.push_back({type, {values.begin(), values.end()}});
      }
    }
    return ir::Interpret(*model.graph, inputs, ir::EvalMode::kExact)
        .at(static_cast<size_t>(model.graph->FindOutput("loss")))
        .data[0];
  }

  static std::vector<double> Next(std::vector<double> values) {
    const auto sample = static_cast<std::ptrdiff_t>(values.size()) / kBatch;
    std::rotate(values.begin(), values.begin() + sample, values.end());
    return values;
  }
};

TEST_F(MixupTest, ImagesAndLossesAreMixedWithThoseOfTheNextSample) {
  const ir::Tensor images = test::RandomTensor(
      {ir::DType::kF32, {kBatch, 3, 8, 8}, {}}, /*seed=*/3, -2, 2);
  const std::vector<double> labels{4, 0, 2};
  const std::vector<double> next = Next(images.data);
  std::vector<double> mixed = images.data;
  for (size_t i = 0; i < mixed.size(); ++i) {
    mixed[i] = kShare * mixed[i] + (1 - kShare) * next[i];
  }
  const double own = Loss(false, mixed, labels);
  const double other = Loss(false, mixed, Next(labels));
  EXPECT_NEAR(Loss(true, images.data, labels),
              kShare * own + (1 - kShare) * other, 1e-6);
  EXPECT_GT(std::abs(own - other), 1e-2);
}

TEST_F(MixupTest, EvaluationDoesNotMix) {
  const Model model = BuildModel("resnet20-cifar", Phase::kEval,
                                 {.batch = 2, .image_size = 8, .mixup = true});
  EXPECT_EQ(model.graph->FindInput("mixup"), nullptr);
}

}  // namespace
}  // namespace fusor::models
