// Compares losses, label smoothing and mixup in the graph with their
// definitions.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "ir/interpreter/interpreter.h"
#include "models/model.h"
#include "runtime/initial_values.h"
#include "tests/testing/numeric.h"

namespace fusor::models {
namespace {

constexpr int64_t kBatch = 3;
constexpr int64_t kClasses = 5;
constexpr double kShare = 0.3;

ModelOptions Options(Loss loss) {
  return {.batch = kBatch,
          .image_size = 8,
          .num_classes = kClasses,
          .input = InputFormat::kF32Nchw,
          .loss = loss};
}

// Returns the outputs of a small network for these inputs and random state.
std::map<std::string, ir::Tensor> OutputsOf(
    Phase phase, const ModelOptions& options,
    const std::map<std::string, std::vector<double>>& given) {
  const Model model = BuildModel("resnet20-cifar", phase, options);
  std::vector<ir::Tensor> inputs;
  for (const ir::Input& input : model.graph->inputs()) {
    const ir::TensorType& type = input.value->type();
    const std::string name(input.value->name());
    if (const auto found = given.find(name); found != given.end()) {
      inputs.push_back({type, found->second});
    } else {
      const auto values = runtime::InitialValues(
          input.attrs, type.num_elements(), name, /*seed=*/1);
      inputs.push_back({type, {values.begin(), values.end()}});
    }
  }
  auto results = ir::Interpret(*model.graph, inputs, ir::EvalMode::kExact);
  std::map<std::string, ir::Tensor> outputs;
  for (size_t i = 0; i < results.size(); ++i) {
    outputs[model.graph->outputs()[i].name] = std::move(results[i]);
  }
  return outputs;
}

ir::Tensor Images() {
  return test::RandomTensor({ir::DType::kF32, {kBatch, 3, 8, 8}, {}},
                            /*seed=*/3, -2, 2);
}

// Returns the mean loss of logits [N,C] by its formula.
double Formula(Loss loss, const std::vector<double>& logits,
               const std::vector<double>& labels) {
  double sum = 0;
  for (int64_t n = 0; n < kBatch; ++n) {
    double exponents = 0;
    for (int64_t c = 0; c < kClasses; ++c) {
      const double x = logits[n * kClasses + c];
      const double t = labels[n] == static_cast<double>(c) ? 1 : 0;
      const double p = 1 / (1 + std::exp(-x));
      exponents += std::exp(x);
      switch (loss) {
        case Loss::kCrossEntropy:
          sum -= t * x;
          break;
        case Loss::kBinaryCrossEntropy:
          sum -= (t * std::log(p) + (1 - t) * std::log(1 - p)) / kClasses;
          break;
        case Loss::kMeanSquaredError:
          sum += (x - t) * (x - t) / kClasses;
          break;
      }
    }
    if (loss == Loss::kCrossEntropy) sum += std::log(exponents);
  }
  return sum / kBatch;
}

class LossTest : public ::testing::TestWithParam<Loss> {};

TEST_P(LossTest, IsThatOfTheFormula) {
  ModelOptions options = Options(GetParam());
  options.per_image = true;
  options.label_smoothing = 0.1;  // only for training
  const std::vector<double> labels{4, 0, 2};
  auto outputs = OutputsOf(
      Phase::kEval, options,
      {{"images", Images().data}, {"labels", labels}, {"weights", {1, 1, 1}}});
  EXPECT_NEAR(outputs["loss_sum"].data[0] / kBatch,
              Formula(GetParam(), outputs["logits"].data, labels), 1e-9);
}

TEST_P(LossTest, IsNanForALabelOutOfRange) {
  auto outputs =
      OutputsOf(Phase::kTrain, Options(GetParam()),
                {{"images", Images().data}, {"labels", {4, kClasses, 2}}});
  EXPECT_TRUE(std::isnan(outputs["loss"].data[0]));
}

// Smoothing by s mixes the label's one-hot vector, with weight 1 - s, with the
// mean of all classes'. A squared error additionally has the variance of that
// mixture.
TEST_P(LossTest, LabelSmoothing) {
  constexpr double kSmoothing = 0.2;
  ModelOptions options = Options(GetParam());
  const auto loss = [&](std::vector<double> labels) {
    return OutputsOf(Phase::kTrain, options,
                     {{"images", Images().data}, {"labels", std::move(labels)}})
        .at("loss")
        .data[0];
  };
  const std::vector<double> labels{4, 0, 2};
  double expected = (1 - kSmoothing) * loss(labels);
  for (int c = 0; c < kClasses; ++c) {
    expected +=
        kSmoothing / kClasses * loss(std::vector<double>(kBatch, double(c)));
  }
  if (GetParam() == Loss::kMeanSquaredError) {
    const double own = 1 - kSmoothing + kSmoothing / kClasses;
    const double other = kSmoothing / kClasses;
    expected -= (1 - own * own - (kClasses - 1) * other * other) / kClasses;
  }
  options.label_smoothing = kSmoothing;
  EXPECT_NEAR(loss(labels), expected, 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Losses, LossTest,
                         ::testing::Values(Loss::kCrossEntropy,
                                           Loss::kBinaryCrossEntropy,
                                           Loss::kMeanSquaredError));

class MixupTest : public LossTest {
 protected:
  // Returns the loss for labels if the graph mixes the images, or of images
  // mixed beforehand.
  static double LossOf(bool mixup, const std::vector<double>& images,
                       const std::vector<double>& labels) {
    ModelOptions options = Options(GetParam());
    options.mixup = mixup;
    return OutputsOf(
               Phase::kTrain, options,
               {{"images", images}, {"labels", labels}, {"mixup", {kShare}}})
        .at("loss")
        .data[0];
  }

  // Returns the loss if the graph cuts this box from the next images.
  static double CutMixLossOf(const std::vector<double>& images,
                             const std::vector<double>& labels, double left,
                             double top, double right, double bottom) {
    ModelOptions options = Options(GetParam());
    options.cutmix = true;
    return OutputsOf(Phase::kTrain, options,
                     {{"images", images},
                      {"labels", labels},
                      {"mixup", {kShare}},
                      {"cutmix_left", {left}},
                      {"cutmix_top", {top}},
                      {"cutmix_right", {right}},
                      {"cutmix_bottom", {bottom}}})
        .at("loss")
        .data[0];
  }

  static std::vector<double> Next(std::vector<double> values) {
    const auto sample = static_cast<std::ptrdiff_t>(values.size()) / kBatch;
    std::rotate(values.begin(), values.begin() + sample, values.end());
    return values;
  }
};

TEST_P(MixupTest, ImagesAndLossesAreMixedWithThoseOfTheNextSample) {
  const ir::Tensor images = Images();
  const std::vector<double> labels{4, 0, 2};
  const std::vector<double> next = Next(images.data);
  std::vector<double> mixed = images.data;
  for (size_t i = 0; i < mixed.size(); ++i) {
    mixed[i] = kShare * mixed[i] + (1 - kShare) * next[i];
  }
  const double own = LossOf(false, mixed, labels);
  const double other = LossOf(false, mixed, Next(labels));
  double expected = kShare * own + (1 - kShare) * other;
  if (GetParam() == Loss::kMeanSquaredError) {
    expected -= kShare * (1 - kShare) * 2 / kClasses;  // variance of the label
  }
  EXPECT_NEAR(LossOf(true, images.data, labels), expected, 1e-6);
  EXPECT_GT(std::abs(own - other), 1e-2);
}

TEST_P(MixupTest, CutMixReplacesABoxAndMixesTheLosses) {
  const ir::Tensor images = Images();
  const std::vector<double> labels{4, 0, 2};
  const std::vector<double> next = Next(images.data);
  std::vector<double> mixed = images.data;
  for (size_t i = 0; i < mixed.size(); ++i) {
    const size_t x = i % 8;
    const size_t y = i / 8 % 8;
    if (x >= 2 && x < 7 && y >= 1 && y < 5) mixed[i] = next[i];
  }
  double expected = kShare * LossOf(false, mixed, labels) +
                    (1 - kShare) * LossOf(false, mixed, Next(labels));
  if (GetParam() == Loss::kMeanSquaredError) {
    expected -= kShare * (1 - kShare) * 2 / kClasses;  // variance of the label
  }
  EXPECT_NEAR(CutMixLossOf(images.data, labels, 2, 1, 7, 5), expected, 1e-6);
}

TEST_P(MixupTest, AnEmptyBoxMixesWholeImages) {
  const ir::Tensor images = Images();
  const std::vector<double> labels{4, 0, 2};
  const double mixed = LossOf(true, images.data, labels);
  EXPECT_EQ(CutMixLossOf(images.data, labels, 0, 0, 0, 0), mixed);
  EXPECT_EQ(CutMixLossOf(images.data, labels, 3, 1, 3, 5), mixed);
}

INSTANTIATE_TEST_SUITE_P(Losses, MixupTest,
                         ::testing::Values(Loss::kCrossEntropy,
                                           Loss::kBinaryCrossEntropy,
                                           Loss::kMeanSquaredError));

TEST(Mixup, EvaluationDoesNotMix) {
  const Model model =
      BuildModel("resnet20-cifar", Phase::kEval,
                 {.batch = 2, .image_size = 8, .mixup = true, .cutmix = true});
  EXPECT_EQ(model.graph->FindInput("mixup"), nullptr);
  EXPECT_EQ(model.graph->FindInput("cutmix_left"), nullptr);
}

}  // namespace
}  // namespace fusor::models
