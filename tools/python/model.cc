#include "tools/python/model.h"

#include <algorithm>
#include <filesystem>

#include "codegen/compiler.h"
#include "ir/io/module_file.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "tools/fusor/flags/model_flags.h"
#include "tools/fusor/setup/model_setup.h"

namespace fusor::python {
namespace {

using ir::DType;

// Throws for keywords that the model determines.
void CheckKeywords(const Options& options, const Model& model,
                   std::initializer_list<const char*> keywords) {
  for (const char* keyword : keywords) {
    FUSOR_CHECK(!options.given.contains(keyword), kUsage,
                "{}: expected none, {} determines it", keyword, model.name);
  }
}

// Throws unless the keyword is not given or equals the example's value.
void CheckExample(const Options& options, const char* keyword, int64_t given,
                  int64_t example) {
  FUSOR_CHECK(!options.given.contains(keyword) || given == example, kUsage,
              "{}: expected {}, that of the example, or none, got {}", keyword,
              example, given);
}

// Sets batch size, image size and format.
void FitImages(const Options& options, const HostArray& images,
               tools::ModelFlags& flags, models::ModelOptions& model) {
  const ir::Shape& shape = images.shape();
  const bool bytes = images.dtype() == DType::kU8 && shape.size() == 4 &&
                     shape[3] == 3 && shape[1] == shape[2];
  const bool floats = images.dtype() == DType::kF32 && shape.size() == 4 &&
                      shape[1] == 3 && shape[2] == shape[3];
  FUSOR_CHECK((bytes || floats) && shape[0] > 0, kUsage,
              "{}: expected uint8 (N, S, S, 3) or float32 (N, 3, S, S), got {}",
              images.name(), Describe(images.dtype(), shape));
  CheckExample(options, "batch_size", flags.options.batch, shape[0]);
  CheckExample(options, "image_size", flags.options.image_size, shape[2]);
  flags.options.batch = shape[0];
  flags.options.image_size = shape[2];
  model.input =
      bytes ? models::InputFormat::kU8Nhwc : models::InputFormat::kF32Nchw;
}

// Sets batch size and types of samples: of the inputs, and of the target if the
// example has one.
void FitTensors(const Options& options, const std::vector<HostArray>& example,
                const models::CustomModel& archive, tools::ModelFlags& flags) {
  const size_t inputs = archive.inputs.size();
  FUSOR_CHECK(example.size() >= inputs && example.size() <= inputs + 1, kUsage,
              "example: expected {}, and a target, got {} arrays",
              Join(archive.inputs, ", ",
                   [](const models::ModelInput& input) { return input.name; }),
              example.size());
  models::SampleTypes sample{.path = "example"};
  for (const HostArray& array : example) {
    ir::Shape shape = array.shape();
    FUSOR_CHECK(
        !shape.empty() && shape[0] > 0 && shape[0] == example[0].shape()[0],
        kUsage, "{}: expected a batch of samples{}, got {}", array.name(),
        &array == example.data() ? "" : ", as many as in example[0]",
        Describe(array.dtype(), shape));
    CheckExample(options, "batch_size", flags.options.batch, shape[0]);
    flags.options.batch = shape[0];
    shape.erase(shape.begin());
    ir::TensorType type{array.dtype(), std::move(shape), {}};
    if (sample.inputs.size() < inputs) {
      sample.inputs.push_back(std::move(type));
    } else {
      sample.target = std::move(type);
    }
  }
  flags.options.sample = std::move(sample);
}

}  // namespace

Model OpenModel(const std::string& source) {
  const std::vector<std::string> names = models::ArchNames();
  if (std::count(names.begin(), names.end(), source) > 0) {
    return {models::CanonicalArch(source), std::nullopt, nullptr};
  }
  if (tools::IsExported(source)) {
    models::CustomModel archive = tools::ReadExported(source);
    return {archive.name, archive, nullptr};
  }
  std::error_code unreadable;
  if (source.find('/') == std::string::npos &&
      !std::filesystem::exists(source, unreadable)) {
    models::CanonicalArch(source);  // throws, with the nearest name
  }
  return ModelOf(ir::ReadModule(source));
}

Model ModelOf(std::shared_ptr<const ir::Graph> graph) {
  return {"module:" + graph->name(), std::nullopt, std::move(graph)};
}

void FitModel(const Options& options, const std::vector<HostArray>& example,
              Model& model) {
  if (model.graph != nullptr) {
    CheckKeywords(options, model,
                  {"batch_size", "image_size", "num_classes", "fan",
                   "zero_gamma", "dropout", "loss", "label_smoothing", "mixup",
                   "cutmix_alpha", "mixup_switch_prob", "mean", "std"});
    return;
  }
  tools::ModelFlags flags = options.model;
  flags.arch = model.name;
  if (model.archive.has_value()) {
    CheckKeywords(options, model, {"fan", "zero_gamma", "dropout"});
    const models::CustomModel& archive = *model.archive;
    if (archive.batch != 0) flags.options.batch = archive.batch;
    if (archive.image_size != 0) flags.options.image_size = archive.image_size;
    if (flags.options.num_classes == 0)
      flags.options.num_classes = archive.num_classes;
  }
  models::ModelOptions fitted;
  if (model.archive.has_value() && !model.archive->classifies) {
    if (!example.empty()) FitTensors(options, example, *model.archive, flags);
  } else if (!example.empty()) {
    FitImages(options, example[0], flags, fitted);
  }
  model.options = tools::MakeModelOptions(flags, /*classes=*/0);
  model.options.input = fitted.input;
}

std::unique_ptr<ir::Graph> Build(const Model& model, const Options& options,
                                 models::Phase phase) {
  if (model.archive.has_value()) {
    return models::BuildModel(*model.archive, phase, model.options).graph;
  }
  if (model.graph == nullptr) {
    return models::BuildModel(model.name, phase, model.options).graph;
  }
  FUSOR_CHECK(
      phase == models::Phase::kTrain, kGraph,
      "{}: expected a built-in model or a .pt2 or .onnx file, which have "
      "a form for evaluation",
      model.name);
  FUSOR_CHECK(codegen::StageOf(*model.graph) == codegen::GraphStage::kForward &&
                  model.graph->FindOutput("loss") >= 0,
              kGraph, "{}: expected a forward graph with output \"loss\"",
              model.name);
  auto graph = model.graph->Clone();
  models::FreezeParameters(*graph, options.model.options.freeze);
  return graph;
}

}  // namespace fusor::python
