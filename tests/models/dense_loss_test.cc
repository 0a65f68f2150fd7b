// Losses of pixels and tokens, of models that PyTorch exported. Interprets them
// in exact mode and compares them with PyTorch in fp64
// (tests/golden/torch_export/trained).

#include "models/import/dense_loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "ir/ignored_label.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/interpreter/interpreter.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "models/import/torch_importer.h"
#include "passes/training/training_state.h"
#include "runtime/data/files/safetensors.h"
#include "tests/testing/data_error.h"

namespace fusor::models {
namespace {

using ir::DType;
using ir::Tensor;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr char kTrained[] = FUSOR_GOLDEN_DIR "/torch_export/trained/";
constexpr int64_t kUnlabelled = 255;

using StepResults = std::map<std::string, Tensor>;

class DenseLossTest : public ::testing::TestWithParam<const char*> {
 protected:
  Tensor Stored(const std::string& name) const {
    const ir::TensorSource* tensor = golden_.Find(name);
    FUSOR_ASSERT(tensor != nullptr, "no stored tensor {}", name);
    return ir::LoadTensor(tensor->type, ir::ReadWhole(*tensor));
  }
  static ir::TensorType SampleOf(ir::TensorType type) {
    type.shape.erase(type.shape.begin());
    return type;
  }
  ModelOptions Options(const std::string& target, Loss loss) const {
    SampleTypes sample{{SampleOf(Stored("input").type)},
                       SampleOf(Stored(target).type),
                       "DATA"};
    for (size_t i = 1; i < model_.inputs.size(); ++i) {
      sample.inputs.push_back(SampleOf(Stored(model_.inputs[i].name).type));
    }
    return {.batch = Stored("input").type.shape[0],
            .num_classes = model_.num_classes,
            .loss = loss,
            .sample = sample};
  }

  // Interprets a step, with the gradients in training, on the stored batch.
  StepResults Run(Phase phase, const ModelOptions& options,
                  const std::string& target) const {
    const auto graph = model_.build(phase, options);
    if (phase == Phase::kTrain) AddGradients(*graph);
    std::vector<Tensor> inputs;
    for (const ir::Input& input : graph->inputs()) {
      inputs.push_back(Value(input.value->name(), target));
      inputs.back().type = input.value->type();
    }
    const auto values = Interpret(*graph, inputs, ir::EvalMode::kExact);
    StepResults results;
    for (size_t i = 0; i < values.size(); ++i) {
      results[graph->outputs()[i].name] = values[i];
    }
    return results;
  }
  double Scalar(Phase phase, const ModelOptions& options,
                const std::string& target, const char* output) const {
    return Run(phase, options, target).at(output).data.at(0);
  }

  CustomModel model_ = ImportTorch(std::string(kTrained) + GetParam() + ".pt2");
  runtime::Safetensors golden_ = runtime::ReadSafetensors(
      std::string(kTrained) + GetParam() + ".safetensors");

 private:
  static void AddGradients(ir::Graph& graph) {
    std::vector<ir::Value*> parameters;
    for (const ir::Input& input : graph.inputs()) {
      if (IsParameter(input.role)) parameters.push_back(input.value.get());
    }
    const auto gradients = passes::BuildGradients(
        graph, graph.outputs()[graph.FindOutput("loss")].value, parameters);
    for (size_t i = 0; i < gradients.size(); ++i) {
      graph.AddOutput(gradients[i], "grad/" + parameters[i]->name());
    }
  }

  Tensor Value(const std::string& name, const std::string& target) const {
    if (name == "images") return Stored("input");
    if (name.starts_with(ir::kFurtherInput)) {
      return Stored(name.substr(ir::kFurtherInput.size()));
    }
    if (name == "targets") return Stored(target);
    if (name == "weights") {
      const int64_t batch = Stored("input").type.shape[0];
      return {{}, std::vector<double>(static_cast<size_t>(batch), 1)};
    }
    if (name == "labels") {
      Tensor labels = Stored(target);
      for (double& label : labels.data) {
        if (label == kUnlabelled) label = ir::kIgnoredLabel;
      }
      return labels;
    }
    for (const ir::TensorSource& weight : model_.weights()) {
      if (weight.name == name) {
        return ir::LoadTensor(weight.type, ir::ReadWhole(weight));
      }
    }
    FUSOR_ASSERT(false, "no value for input {}", name);
  }
};

TEST_P(DenseLossTest, ATrainingStepEqualsPyTorchs) {
  const StepResults results =
      Run(Phase::kTrain, Options("target", Loss::kCrossEntropy), "target");
  EXPECT_NEAR(results.at("loss").data[0], Stored("loss").data[0], 1e-12);
  size_t compared = 0;
  for (const ir::TensorSource& stored : golden_.tensors) {
    if (!stored.name.starts_with("grad/")) continue;
    ++compared;
    const std::vector<double> expected = Stored(stored.name).data;
    const Tensor& actual = results.at(stored.name);
    ASSERT_EQ(actual.data.size(), expected.size()) << stored.name;
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(actual.data[i], expected[i], 1e-12) << stored.name;
    }
  }
  EXPECT_GE(compared, 8U);
}

TEST_P(DenseLossTest, ValuesEqualPyTorchsLosses) {
  for (const auto& [loss, name] :
       {std::pair(Loss::kMeanSquaredError, "mse"),
        std::pair(Loss::kBinaryCrossEntropy, "bce")}) {
    const double factor = GetParam() == std::string("pixels") ? 1.5 : 1;
    ModelOptions options = Options("values", loss);
    const double train = Scalar(Phase::kTrain, options, "values", "loss");
    if (factor == 1) {  // no auxiliary result, no normalisation of batches
      EXPECT_NEAR(train, Stored(name).data[0], 1e-12) << name;
      EXPECT_NEAR(Scalar(Phase::kEval, options, "values", "loss_sum"),
                  train * static_cast<double>(options.batch), 1e-12)
          << name;
    } else {
      EXPECT_GT(train, Stored(name).data[0]) << name;
    }
  }
}

// Only labels that count change the loss.
TEST_P(DenseLossTest, ABatchWithoutLabelsHasLoss0) {
  const ModelOptions options = Options("target", Loss::kCrossEntropy);
  const auto graph = model_.build(Phase::kTrain, options);
  std::vector<Tensor> inputs;
  for (const ir::Input& input : graph->inputs()) {
    const ir::TensorType& type = input.value->type();
    inputs.push_back(
        {type, std::vector<double>(
                   static_cast<size_t>(type.num_elements()),
                   input.value->name() == "labels" ? ir::kIgnoredLabel : 0.5)});
    if (input.value->name() == "images")
      inputs.back().data = Stored("input").data;
  }
  const auto results = Interpret(*graph, inputs, ir::EvalMode::kExact);
  EXPECT_EQ(results[static_cast<size_t>(graph->FindOutput("loss"))].data[0], 0);
}

TEST_P(DenseLossTest, TargetsOfOtherShapesAreErrors) {
  ModelOptions options = Options("target", Loss::kCrossEntropy);
  const ir::TensorType labels = *options.sample->target;
  const auto error = [&](const std::string& a, const std::string& b) {
    EXPECT_THAT([&] { model_.build(Phase::kTrain, options); },
                ::fusor::testing::DataError(a, b));
  };
  options.sample->target->shape.back() += 1;
  error("DATA: tensor target: expected samples of integers [",
        "for --loss cross-entropy");
  options.sample->target = labels;
  options.sample->target->dtype = DType::kF32;
  error("DATA: tensor target: expected", "got f32[");
  options.loss = Loss::kMeanSquaredError;
  error("or values [", "for --loss mse");
  options.sample->target = labels;
  EXPECT_NO_THROW(model_.build(Phase::kTrain, options));  // one-hot
  options.sample->inputs.back().shape.push_back(1);
  error(fmt::format(
            "DATA: tensor {}: expected samples ",
            model_.inputs.size() == 1 ? "input" : model_.inputs.back().name),
        "got ");
}

TEST_P(DenseLossTest, MixupAndOtherClassesAreErrors) {
  ModelOptions options = Options("target", Loss::kCrossEntropy);
  options.mixup = true;
  EXPECT_THAT([&] { model_.build(Phase::kTrain, options); },
              ThrowsMessage<Error>(HasSubstr("--mixup")));
  if (GetParam() == std::string("pixels")) return;
  // The last layer is the embedding, which is not replaced.
  options.mixup = false;
  options.num_classes = 12;
  EXPECT_THAT(
      [&] { model_.build(Phase::kTrain, options); },
      ThrowsMessage<Error>(HasSubstr("expected 12 classes (--num-classes)")));
}

INSTANTIATE_TEST_SUITE_P(Models, DenseLossTest,
                         ::testing::Values("pixels", "tokens", "masked"));

class TokensTest : public DenseLossTest {};

TEST_P(TokensTest, EvaluationCountsLabels) {
  const StepResults results =
      Run(Phase::kEval, Options("target", Loss::kCrossEntropy), "target");
  const double counted = results.at("counted").data[0];
  EXPECT_EQ(counted, 15);  // of 18 tokens, the last ones have no next one
  EXPECT_NEAR(results.at("loss_sum").data[0] / counted,
              Stored("loss_alone").data[0], 1e-12);
  EXPECT_NEAR(results.at("top1").data[0] / counted, Stored("accuracy").data[0],
              1e-12);
  EXPECT_GE(results.at("top5").data[0], results.at("top1").data[0]);
}

TEST_P(TokensTest, TheEmbeddingTellsTheTokens) {
  EXPECT_EQ(model_.inputs.at(0).tokens, 11);
  for (size_t i = 1; i < model_.inputs.size(); ++i) {
    EXPECT_EQ(model_.inputs[i].name, "attention_mask");
    EXPECT_EQ(model_.inputs[i].tokens, 0);
  }
  EXPECT_EQ(model_.num_classes, 11);
  EXPECT_FALSE(model_.classifies);
  ModelOptions options = Options("target", Loss::kCrossEntropy);
  options.sample.reset();
  EXPECT_THAT([&] { model_.build(Phase::kTrain, options); },
              ThrowsMessage<Error>(HasSubstr("i64[?]: expected DATA")));
}

INSTANTIATE_TEST_SUITE_P(Models, TokensTest,
                         ::testing::Values("tokens", "masked"));

// RGB images in bytes are normalised by mean and standard deviation.
TEST(TensorInput, BytesOfImagesAreNormalised) {
  const CustomModel model = ImportTorch(std::string(kTrained) + "pixels.pt2");
  EXPECT_EQ(model.num_classes, 5);
  ModelOptions options{
      .batch = 1,
      .num_classes = 5,
      .mean = {1, 2, 3},
      .std = {2, 4, 8},
      .sample = SampleTypes{
          {{DType::kU8, {3, 8, 10}, {}}}, {{DType::kU8, {8, 10}, {}}}, "DATA"}};
  const auto graph = model.build(Phase::kTrain, options);
  EXPECT_EQ(ToString(graph->FindInput("images")->type()), "u8[1,3,8,10]");
  const auto conv = std::find_if(
      graph->nodes().begin(), graph->nodes().end(),
      [](const auto& node) { return node->kind() == ir::OpKind::kConv2d; });
  ASSERT_NE(conv, graph->nodes().end());
  graph->AddOutput((*conv)->input(0), "normalised");
  std::vector<Tensor> inputs;
  for (const ir::Input& input : graph->inputs()) {
    const ir::TensorType& type = input.value->type();
    const double value = input.value->name() == "images" ? 9 : 1;
    inputs.push_back(
        {type,
         std::vector<double>(static_cast<size_t>(type.num_elements()), value)});
  }
  const Tensor x = Interpret(*graph, inputs, ir::EvalMode::kExact).back();
  EXPECT_EQ(x.data[0], 4);
  EXPECT_EQ(x.data[80], 1.75);
  EXPECT_EQ(x.data[160], 0.75);
}

}  // namespace
}  // namespace fusor::models
