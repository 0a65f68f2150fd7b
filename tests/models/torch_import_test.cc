// Models that torch.export exported, imported and run by the interpreter in
// exact mode, against PyTorch in fp64 (tests/golden/torch_export).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "ir/interpreter/host_tensor.h"
#include "ir/interpreter/interpreter.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "models/import/torch_archive.h"
#include "models/import/torch_importer.h"
#include "passes/training/training_state.h"
#include "runtime/checkpoint/safetensors.h"

namespace fusor::models {
namespace {

using ir::InputRole;
using ir::Tensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kExports[] = FUSOR_GOLDEN_DIR "/torch_export/";

std::vector<std::string> Exports() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kExports)) {
    if (entry.path().extension() == ".pt2") {
      names.push_back(entry.path().stem().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

CustomModel Import(const std::string& name) {
  return ImportTorch(kExports + name + ".pt2");
}

// The options of a stored step.
ModelOptions OptionsOf(const CustomModel& model, int64_t batch) {
  return {.batch = batch,
          .image_size = model.image_size,
          .num_classes = model.num_classes,
          .input = InputFormat::kF32Nchw,
          .per_image = true};
}

class TorchImport : public ::testing::TestWithParam<std::string> {
 protected:
  Tensor Stored(const std::string& name) const {
    const runtime::NamedTensor* tensor = golden_.Find(name);
    FUSOR_ASSERT(tensor != nullptr, "no stored tensor {}", name);
    return ir::LoadTensor(tensor->type, tensor->bytes);
  }

  std::unique_ptr<ir::Graph> Build(Phase phase) const {
    return model_.build(phase,
                        OptionsOf(model_, Stored("images").type.shape[0]));
  }

  // The archive's weights and the stored batch; all images count.
  std::vector<Tensor> Inputs(const ir::Graph& graph) const {
    std::vector<Tensor> inputs;
    for (const ir::Input& input : graph.inputs()) {
      const std::string& name = input.value->name();
      if (const runtime::NamedTensor* stored = golden_.Find(name)) {
        inputs.push_back(ir::LoadTensor(stored->type, stored->bytes));
      } else if (const auto weight = std::find_if(
                     weights_.begin(), weights_.end(),
                     [&](const auto& tensor) { return tensor.name == name; });
                 weight != weights_.end()) {
        inputs.push_back(ir::LoadTensor(weight->type, weight->bytes));
      } else {
        const ir::TensorType& type = input.value->type();
        inputs.push_back(
            {type,
             std::vector<double>(static_cast<size_t>(type.num_elements()), 1)});
      }
    }
    return inputs;
  }

  void ExpectStored(const Tensor& actual, const std::string& name) const {
    const std::vector<double> expected = Stored(name).data;
    ASSERT_EQ(actual.data.size(), expected.size()) << name;
    double scale = 0;
    double difference = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      scale = std::max(scale, std::fabs(expected[i]));
      // In this order, so that a NaN fails.
      if (!(std::fabs(actual.data[i] - expected[i]) <= difference)) {
        difference = std::fabs(actual.data[i] - expected[i]);
      }
    }
    // A gradient may be 0 except for rounding, hence the least scale.
    EXPECT_LE(difference, tolerance_ * std::max(scale, 1e-3)) << name;
  }

  CustomModel model_ = Import(GetParam());
  std::vector<ir::NamedTensor> weights_ = model_.weights();
  runtime::Safetensors golden_ =
      runtime::ReadSafetensors(kExports + GetParam() + ".safetensors");
  // 1e-10, or what float constants in PyTorch's own kernels allow.
  double tolerance_ = std::stod(golden_.metadata.at("tolerance"));
};

TEST_P(TorchImport, ATrainingStepEqualsPyTorchs) {
  auto graph = Build(Phase::kTrain);
  std::vector<ir::Value*> parameters;
  for (const ir::Input& input : graph->inputs()) {
    if (IsParameter(input.role)) parameters.push_back(input.value.get());
  }
  const auto gradients = passes::BuildGradients(
      *graph, graph->outputs()[graph->FindOutput("loss")].value, parameters);
  for (size_t i = 0; i < gradients.size(); ++i) {
    graph->AddOutput(gradients[i], "grad/" + parameters[i]->name());
  }
  const auto results = Interpret(*graph, Inputs(*graph), ir::EvalMode::kExact);
  size_t compared = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const ir::Output& output = graph->outputs()[i];
    ExpectStored(results[i],
                 output.alias < 0 ? output.name : "running/" + output.name);
    ++compared;
  }
  // Nothing that PyTorch computed is missing; "images", "labels" and "logits"
  // are no results of the step.
  EXPECT_EQ(compared, golden_.tensors.size() - 3);
}

TEST_P(TorchImport, EvaluationEqualsPyTorchs) {
  const auto graph = Build(Phase::kEval);
  const auto results = Interpret(*graph, Inputs(*graph), ir::EvalMode::kExact);
  ExpectStored(results[static_cast<size_t>(graph->FindOutput("logits"))],
               "logits");
}

TEST_P(TorchImport, TakesAnyBatchSize) {
  EXPECT_EQ(model_.batch, 0);
  const auto graph =
      model_.build(Phase::kTrain, OptionsOf(model_, /*batch=*/7));
  EXPECT_EQ(graph->FindInput("labels")->type().shape, ir::Shape{7});
}

INSTANTIATE_TEST_SUITE_P(Exports, TorchImport, ::testing::ValuesIn(Exports()),
                         [](const auto& instance) { return instance.param; });

TEST(TorchImporter, StoredArchivesAreThere) {
  EXPECT_THAT(Exports(), ElementsAre("activations", "auxiliary",
                                     "convolutional", "windowed"));
}

TEST(TorchImporter, RolesFollowFromTheOperators) {
  const CustomModel model = Import("convolutional");
  const auto graph = model.build(Phase::kTrain, OptionsOf(model, 2));
  const auto role = [&](const char* name) {
    return graph->inputs()[static_cast<size_t>(graph->FindInput(name)->index())]
        .role;
  };
  EXPECT_EQ(role("stem.0.weight"), InputRole::kWeight);
  EXPECT_EQ(role("stem.1.weight"), InputRole::kNormScale);
  EXPECT_EQ(role("stem.1.bias"), InputRole::kNormShift);
  EXPECT_EQ(role("stem.1.running_var"), InputRole::kStatistic);
  EXPECT_EQ(role("norm2.weight"), InputRole::kNormScale);
  EXPECT_EQ(role("head.bias"), InputRole::kBias);
}

TEST(TorchImporter, NodesNameModuleAndPythonLine) {
  const CustomModel model = Import("convolutional");
  const auto graph = model.build(Phase::kTrain, OptionsOf(model, 2));
  const auto grouped = std::find_if(
      graph->nodes().begin(), graph->nodes().end(), [](const auto& node) {
        return node->kind() == ir::OpKind::kConv2d &&
               node->location().path == "grouped";
      });
  ASSERT_NE(grouped, graph->nodes().end());
  EXPECT_EQ((*grouped)->location().source.file(),
            "golden/make_torch_export.py");
  EXPECT_GT((*grouped)->location().source.line(), 1);
}

TEST(TorchImporter, OtherClassesReplaceTheLastLayerOfEachResult) {
  const CustomModel model = Import("auxiliary");
  ModelOptions options = OptionsOf(model, 2);
  options.num_classes = 9;
  const auto graph = model.build(Phase::kTrain, options);
  EXPECT_EQ(graph->FindInput("head.weight")->type().shape,
            (ir::Shape{9, 6, 1, 1}));
  EXPECT_EQ(graph->FindInput("side.weight")->type().shape, (ir::Shape{9, 6}));
  EXPECT_EQ(graph->FindInput("side.bias")->type().shape, ir::Shape{9});
  EXPECT_EQ(graph->FindInput("second.weight")->type().shape,
            (ir::Shape{6, 6, 3, 3}));
}

// The archive's bytes with the first occurrence of `from` replaced by `to`, of
// the same length.
void ExpectError(const std::string& from, const std::string& to,
                 const char* message) {
  std::vector<uint8_t> file;
  ReadFile(std::string(kExports) + "auxiliary.pt2", ErrorCode::kData, file);
  const auto at =
      std::search(file.begin(), file.end(), from.begin(), from.end());
  ASSERT_NE(at, file.end());
  ASSERT_EQ(from.size(), to.size());
  std::copy(to.begin(), to.end(), at);
  try {
    ParseTorchArchive("model.pt2", file);
    ADD_FAILURE() << "accepted " << to;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TEST(TorchImporter, RefusesDamagedEntries) {
  // The checksum of an entry.
  ExpectError("conv2d.default", "conv3d.default", "CRC error");
}

TEST(TorchImporter, RefusesTruncatedArchives) {
  std::vector<uint8_t> file;
  ReadFile(std::string(kExports) + "auxiliary.pt2", ErrorCode::kData, file);
  for (size_t length = 0; length < file.size(); length += 997) {
    EXPECT_THROW(ParseTorchArchive("model.pt2", std::span(file).first(length)),
                 Error)
        << length;
  }
}

}  // namespace
}  // namespace fusor::models
