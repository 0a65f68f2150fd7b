// Imports models exported by PyTorch, as archives and in ONNX's format,
// interprets them in exact mode, and compares them with PyTorch in fp64
// (tests/golden/torch_export).

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
#include "models/onnx/onnx_importer.h"
#include "passes/training/training_state.h"
#include "runtime/data/files/safetensors.h"

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
    const std::string kind = entry.path().extension().string();
    if (kind == ".pt2" || kind == ".onnx") {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool IsOnnx(const std::string& name) { return name.ends_with(".onnx"); }

CustomModel Import(const std::string& name) {
  return IsOnnx(name) ? ImportOnnx(kExports + name)
                      : ImportTorch(kExports + name);
}

// Returns the options of the stored step.
ModelOptions OptionsOf(const CustomModel& model, int64_t batch) {
  return {.batch = batch,
          .image_size = model.image_size,
          .num_classes = model.num_classes,
          .input = InputFormat::kF32Nchw,
          .per_image = true};
}

class ModelImport : public ::testing::TestWithParam<std::string> {
 protected:
  Tensor Stored(const std::string& name) const {
    const ir::TensorSource* tensor = golden_.Find(name);
    FUSOR_ASSERT(tensor != nullptr, "no stored tensor {}", name);
    return ir::LoadTensor(tensor->type, ir::ReadWhole(*tensor));
  }

  std::unique_ptr<ir::Graph> Build(Phase phase) const {
    return model_.build(phase,
                        OptionsOf(model_, Stored("images").type.shape[0]));
  }

  // Returns the archive's weights and the stored batch. All images have weight
  // 1.
  std::vector<Tensor> Inputs(const ir::Graph& graph) const {
    std::vector<Tensor> inputs;
    for (const ir::Input& input : graph.inputs()) {
      const std::string& name = input.value->name();
      if (const ir::TensorSource* stored = golden_.Find(name)) {
        inputs.push_back(ir::LoadTensor(stored->type, ir::ReadWhole(*stored)));
      } else if (const auto weight = std::find_if(
                     weights_.begin(), weights_.end(),
                     [&](const auto& tensor) { return tensor.name == name; });
                 weight != weights_.end()) {
        inputs.push_back(ir::LoadTensor(weight->type, ir::ReadWhole(*weight)));
      } else {
        const ir::TensorType& type = input.value->type();
        inputs.push_back(
            {type,
             std::vector<double>(static_cast<size_t>(type.num_elements()), 1)});
      }
    }
    return inputs;
  }

  // Converts PyTorch's unbiased variances to the population variances of ONNX.
  // next = (1 - momentum) * 1 + momentum * variance.
  std::vector<double> OfPopulation(std::vector<double> next,
                                   const std::string& name) const {
    const double momentum = name == "running/norm1.running_var" ? 0.01 : 0.1;
    const double count = VarianceCounts().at(GetParam() + "/" + name);
    for (double& value : next) {
      const double unbiased = (value - (1 - momentum)) / momentum;
      value = 1 - momentum + momentum * unbiased * (count - 1) / count;
    }
    return next;
  }
  // Returns the number of elements per channel of the normalised tensor.
  static const std::map<std::string, double>& VarianceCounts() {
    static const std::map<std::string, double> kCounts = {
        {"auxiliary.onnx/running/norm.running_var", 3 * 5 * 5},
        {"convolutional.onnx/running/stem.1.running_var", 3 * 8 * 8},
        {"convolutional.onnx/running/norm1.running_var", 3 * 8 * 8}};
    return kCounts;
  }

  void ExpectStored(const Tensor& actual, const std::string& name) const {
    std::vector<double> expected = Stored(name).data;
    if (IsOnnx(GetParam()) && name.ends_with("running_var")) {
      expected = OfPopulation(std::move(expected), name);
    }
    ASSERT_EQ(actual.data.size(), expected.size()) << name;
    double scale = 0;
    double difference = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      scale = std::max(scale, std::fabs(expected[i]));
      // The comparison is negated so that NaN fails.
      if (!(std::fabs(actual.data[i] - expected[i]) <= difference)) {
        difference = std::fabs(actual.data[i] - expected[i]);
      }
    }
    // A gradient may be 0 except for rounding errors, so the scale has a
    // minimum.
    EXPECT_LE(difference, tolerance_ * std::max(scale, 1e-3)) << name;
  }

  CustomModel model_ = Import(GetParam());
  std::vector<ir::TensorSource> weights_ = model_.weights();
  runtime::Safetensors golden_ = runtime::ReadSafetensors(
      kExports + GetParam().substr(0, GetParam().find('.')) + ".safetensors");
  // 1e-10, or more if float constants in PyTorch's own kernels limit the
  // precision. ONNX's attributes are floats.
  double tolerance_ =
      IsOnnx(GetParam()) ? 1e-6 : std::stod(golden_.metadata.at("tolerance"));
};

TEST_P(ModelImport, ATrainingStepEqualsPyTorchs) {
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
  // Everything that PyTorch computed was compared. "images", "labels" and
  // "logits" are not results of the step.
  EXPECT_EQ(compared, golden_.tensors.size() - 3);
}

TEST_P(ModelImport, EvaluationEqualsPyTorchs) {
  const auto graph = Build(Phase::kEval);
  const auto results = Interpret(*graph, Inputs(*graph), ir::EvalMode::kExact);
  ExpectStored(results[static_cast<size_t>(graph->FindOutput("logits"))],
               "logits");
}

TEST_P(ModelImport, TakesAnyBatchSize) {
  EXPECT_EQ(model_.batch, 0);
  const auto graph =
      model_.build(Phase::kTrain, OptionsOf(model_, /*batch=*/7));
  EXPECT_EQ(graph->FindInput("labels")->type().shape, ir::Shape{7});
}

INSTANTIATE_TEST_SUITE_P(Exports, ModelImport, ::testing::ValuesIn(Exports()),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST(ImporterTest, StoredModelsAreThere) {
  EXPECT_THAT(
      Exports(),
      ElementsAre("activations.onnx", "activations.pt2", "auxiliary.onnx",
                  "auxiliary.pt2", "convolutional.onnx", "convolutional.pt2",
                  "decomposed.pt2", "windowed.onnx", "windowed.pt2"));
}

TEST(ImporterTest, RolesFollowFromTheOperators) {
  for (const char* file : {"convolutional.pt2", "convolutional.onnx"}) {
    const CustomModel model = Import(file);
    const auto graph = model.build(Phase::kTrain, OptionsOf(model, 2));
    const auto role = [&](const char* name) {
      return graph
          ->inputs()[static_cast<size_t>(graph->FindInput(name)->index())]
          .role;
    };
    EXPECT_EQ(role("stem.0.weight"), InputRole::kWeight);
    EXPECT_EQ(role("stem.1.weight"), InputRole::kNormScale);
    EXPECT_EQ(role("stem.1.bias"), InputRole::kNormShift);
    EXPECT_EQ(role("stem.1.running_var"), InputRole::kStatistic);
    EXPECT_EQ(role("head.bias"), InputRole::kBias);
  }
}

TEST(OnnxImporter, NodesNameTheirPath) {
  const CustomModel model = Import("convolutional.onnx");
  const auto graph = model.build(Phase::kTrain, OptionsOf(model, 2));
  EXPECT_TRUE(std::any_of(graph->nodes().begin(), graph->nodes().end(),
                          [](const auto& node) {
                            return node->location().path == "grouped.Conv";
                          }));
}

TEST(OnnxImporter, TensorsThatLayersUseAreParametersOthersConstants) {
  const CustomModel model = Import("windowed.onnx");
  const auto graph = model.build(Phase::kTrain, OptionsOf(model, 2));
  // A lookup table, a position embedding and a layer scale.
  for (const char* name : {"bias", "token", "scale"}) {
    ASSERT_NE(graph->FindInput(name), nullptr) << name;
  }
  EXPECT_EQ(graph->FindInput("index"), nullptr);
}

TEST(TorchImporter, NodesNameModuleAndPythonLine) {
  const CustomModel model = Import("convolutional.pt2");
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

TEST(ImporterTest, OtherClassesReplaceTheLastLayerOfEachResult) {
  for (const char* file : {"auxiliary.pt2", "auxiliary.onnx"}) {
    const CustomModel model = Import(file);
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
}

TEST(OnnxImporter, RejectsInputsWithoutAName) {
  std::vector<uint8_t> file;
  ReadFile(std::string(kExports) + "auxiliary.onnx", ErrorCode::kData, file);
  // Field 11 is the graph's input. Its field 1 is the name "x". As field 3, the
  // "x" is a comment.
  const std::string_view input = "\x5A\x20\x0A\x01x\x12";
  const auto at =
      std::search(file.begin(), file.end(), input.begin(), input.end());
  ASSERT_NE(at, file.end());
  *(at + 2) = 0x1A;
  try {
    ImportOnnx("model.onnx", file);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    EXPECT_STREQ(error.what(),
                 "model.onnx: input 0 of the graph: expected a name of its "
                 "own, got ''");
  }
}

// Replaces the first occurrence of `from` in the archive by `to`, which has the
// same length. The import must fail with `message`.
void ExpectError(const std::string& from, const std::string& to,
                 const char* message) {
  std::vector<uint8_t> file;
  ReadFile(std::string(kExports) + "auxiliary.pt2", ErrorCode::kData, file);
  const std::vector<uint8_t> bytes(from.begin(), from.end());
  const auto at =
      std::search(file.begin(), file.end(), bytes.begin(), bytes.end());
  ASSERT_NE(at, file.end());
  ASSERT_EQ(from.size(), to.size());
  std::copy(to.begin(), to.end(), at);
  try {
    ReadTorchArchive("model.pt2", file);
    ADD_FAILURE() << "accepted " << to;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TEST(TorchImporter, RejectsDamagedEntries) {
  // The checksum of an entry does not match: of the program, of a weight.
  ExpectError("conv2d.default", "conv3d.default", "expected checksum");
  std::vector<uint8_t> file;
  ReadFile(std::string(kExports) + "auxiliary.pt2", ErrorCode::kData, file);
  const TorchProgram program = ReadTorchArchive("model.pt2", file);
  const std::vector<uint8_t> weight =
      ir::ReadWhole(program.tensors.at("head.weight"));
  std::string damaged(weight.begin(), weight.end());
  damaged.back() ^= 1;
  ExpectError({weight.begin(), weight.end()}, damaged, "expected checksum");
}

TEST(TorchImporter, ReadsWeightsFromTheFile) {
  const std::string path = ::testing::TempDir() + "reads_weights.pt2";
  const auto copy = [&] {
    std::filesystem::copy_file(
        std::string(kExports) + "auxiliary.pt2", path,
        std::filesystem::copy_options::overwrite_existing);
    return ImportTorch(path).weights();
  };
  std::vector<uint8_t> file;
  ReadFile(std::string(kExports) + "auxiliary.pt2", ErrorCode::kData, file);
  const std::vector<ir::TensorSource> expected =
      ImportTorch(path, file).weights();
  const std::vector<ir::TensorSource> weights = copy();
  std::filesystem::remove(path);  // only its name
  ASSERT_EQ(weights.size(), expected.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_EQ(weights[i].name, expected[i].name);
    EXPECT_EQ(ir::ReadWhole(weights[i]), ir::ReadWhole(expected[i]));
  }
  const std::vector<ir::TensorSource> cut = copy();
  std::filesystem::resize_file(path, 0);
  try {
    ir::ReadWhole(cut[0]);
    ADD_FAILURE() << "read a weight of an empty file";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr(path));
  }
}

TEST(TorchImporter, RejectsTruncatedArchives) {
  std::vector<uint8_t> file;
  ReadFile(std::string(kExports) + "auxiliary.pt2", ErrorCode::kData, file);
  for (size_t length = 0; length < file.size(); length += 997) {
    EXPECT_THROW(ReadTorchArchive("model.pt2", std::span(file).first(length)),
                 Error)
        << length;
  }
}

}  // namespace
}  // namespace fusor::models
