#include "tools/fusor/flags/model_flags.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "codegen/compiler.h"
#include "ir/builder.h"
#include "ir/io/module_file.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "models/import/torch_importer.h"
#include "models/model.h"
#include "models/onnx/onnx_importer.h"

namespace fusor::tools {

namespace {

using ir::DType;
using ir::Graph;
using ir::InputRole;
using ir::TensorType;
using ir::Value;

bool IsBytesImage(const TensorType& type) {
  return type.dtype == DType::kU8 && type.rank() == 4 &&
         type.shape[1] == type.shape[2] && type.shape[3] == 3;
}

bool IsFloatImage(const TensorType& type) {
  return ir::IsFloat(type.dtype) && type.rank() == 4 && type.shape[1] == 3 &&
         type.shape[2] == type.shape[3];
}

bool IsImage(const TensorType& type) {
  return IsBytesImage(type) || IsFloatImage(type);
}
bool IsLabels(const TensorType& type) {
  return type.rank() == 1 &&
         (type.dtype == DType::kI32 || type.dtype == DType::kI64);
}
bool IsWeights(const TensorType& type) {
  return type.rank() == 1 && ir::IsFloat(type.dtype);
}

// Returns the data input of that name, otherwise the only one of the type; null
// if there is none or several.
Value* FindData(const Graph& graph, const char* name,
                bool (*fits)(const TensorType&)) {
  std::vector<Value*> found;
  for (const ir::Input& input : graph.inputs()) {
    if (input.role != InputRole::kData || !fits(input.value->type())) continue;
    if (input.value->name() == name) return input.value.get();
    found.push_back(input.value.get());
  }
  return found.size() == 1 ? found[0] : nullptr;
}

// Returns whether a program reads batches of tensors: its input and its target
// have the names of imported models, and the input is no image.
bool ReadsTensors(const Graph& graph) {
  return FindData(graph, ir::kModelInput, IsImage) == nullptr &&
         graph.FindInput(ir::kModelInput) != nullptr &&
         (graph.FindInput("labels") != nullptr ||
          graph.FindInput("targets") != nullptr);
}

// Replaces the data input `old` by a new one, from which `convert` computes it.
void ReplaceInput(Graph& graph, Value* old, const char* name, TensorType type,
                  const std::function<Value*(ir::Builder&, Value*)>& convert) {
  graph.Rename(old, std::string("given_") + name);
  Value* input = graph.AddInput(std::move(type), InputRole::kData, name);
  ir::Builder builder(graph);
  const ir::Builder::Scope scope(builder, name);
  graph.ReplaceAllUses(old, convert(builder, input));
  graph.EraseInput(static_cast<size_t>(old->index()));
  graph.SortTopologically();
}

void FeedImages(Graph& graph, const models::ModelOptions& options) {
  Value* images = FindData(graph, "images", IsImage);
  if (images == nullptr) return;
  if (IsBytesImage(images->type())) {
    if (images->name() != "images") graph.Rename(images, "images");
    return;
  }
  const DType dtype = images->type().dtype;
  const int64_t n = images->type().shape[0];
  const int64_t side = images->type().shape[2];
  ReplaceInput(
      graph, images, "images", {DType::kU8, {n, side, side, 3}, {}},
      [&](ir::Builder& b, Value* bytes) {
        const auto row = [&](const std::array<double, 3>& values) {
          return b.Constant(DType::kF32, {3}, {values.begin(), values.end()});
        };
        Value* x = b.Minus(b.Cast(bytes, DType::kF32), row(options.mean));
        x = b.Transpose(b.Divide(x, row(options.std)), {0, 3, 1, 2});
        return dtype == DType::kF32 ? x : b.Cast(x, dtype);
      });
}

void FeedLabels(Graph& graph) {
  Value* labels = FindData(graph, "labels", IsLabels);
  if (labels == nullptr) return;
  if (labels->type().dtype == DType::kI32) {
    if (labels->name() != "labels") graph.Rename(labels, "labels");
    return;
  }
  ReplaceInput(graph, labels, "labels", {DType::kI32, labels->type().shape, {}},
               [](ir::Builder& b, Value* x) { return b.Cast(x, DType::kI64); });
}

// Adds per-image correctness outputs to a prediction module.
void AddPerImage(Graph& graph) {
  const int logits = graph.FindOutput("logits");
  const Value* labels = FindData(graph, "labels", IsLabels);
  if (logits < 0 || labels == nullptr || graph.FindOutput("correct1") >= 0) {
    return;
  }
  ir::Builder b(graph);
  Value* scores = graph.outputs()[static_cast<size_t>(logits)].value;
  Value* truth = graph.FindInput(labels->name());
  graph.AddOutput(b.TopKCorrect(scores, truth, 1), "correct1");
  graph.AddOutput(b.TopKCorrect(scores, truth, 5), "correct5");
}

bool HasOutputs(const Graph& graph, std::initializer_list<const char*> names) {
  return std::all_of(names.begin(), names.end(), [&](const char* name) {
    return graph.FindOutput(name) >= 0;
  });
}

// Training graphs update running statistics.
bool KeepsState(const Graph& graph) {
  return std::none_of(
      graph.outputs().begin(), graph.outputs().end(),
      [](const ir::Output& output) { return output.alias >= 0; });
}

// Returns the number of classes; 0 if no node determines it.
int64_t ClassesOf(const Graph& graph) {
  const int logits = graph.FindOutput("logits");
  const Value* scores =
      logits < 0 ? nullptr : graph.outputs()[static_cast<size_t>(logits)].value;
  if (scores != nullptr && scores->type().rank() == 2) {
    return scores->type().shape[1];
  }
  const Value* labels = FindData(graph, "labels", IsLabels);
  if (labels == nullptr) return 0;
  for (const ir::Use& use : labels->uses()) {
    const TensorType& type = use.node->output()->type();
    if (type.rank() == 2 && type.shape[0] == labels->type().shape[0]) {
      return type.shape[1];
    }
  }
  return 0;
}

int64_t BatchOf(const Graph& graph) {
  for (const ir::Input& input : graph.inputs()) {
    if (input.role == InputRole::kData && input.value->type().rank() > 0) {
      return input.value->type().shape[0];
    }
  }
  return 1;
}

}  // namespace

void UseModule(std::shared_ptr<const Graph> graph, ModelFlags& flags) {
  const bool forward =
      codegen::StageOf(*graph) == codegen::GraphStage::kForward;
  const Value* images = FindData(*graph, "images", IsImage);
  models::CustomModel model{.name = "module:" + graph->name()};
  model.batch = images != nullptr ? images->type().shape[0] : BatchOf(*graph);
  model.normalizes = images != nullptr && IsFloatImage(images->type());
  model.trains = forward && HasOutputs(*graph, {"loss"});
  model.evaluates = forward && KeepsState(*graph) &&
                    (HasOutputs(*graph, {"loss_sum", "top1", "top5"}) ||
                     HasOutputs(*graph, {"logits"}));
  model.classifies = !ReadsTensors(*graph);
  for (const ir::Input& input : graph->inputs()) {
    const std::string& name = input.value->name();
    if (!ir::IsModelInputName(name)) continue;
    model.inputs.push_back({ir::OwnInputName(name)});
  }
  model.build = [graph](models::Phase phase,
                        const models::ModelOptions& options) {
    auto built = graph->Clone();
    FeedImages(*built, options);
    FeedLabels(*built);
    if (Value* weights = FindData(*built, "weights", IsWeights);
        weights != nullptr && weights->name() != "weights") {
      built->Rename(weights, "weights");
    }
    if (phase == models::Phase::kEval && options.per_image) AddPerImage(*built);
    return built;
  };
  flags.arch = model.name;
  flags.options.batch = model.batch;
  // Images have a size even if the model reads none.
  constexpr int64_t kNoImage = 8;
  flags.options.image_size =
      images == nullptr ? kNoImage : images->type().shape[2];
  flags.options.num_classes = ClassesOf(*graph);
  flags.graph = std::move(graph);
  models::RegisterModel(std::move(model));
}

void UseModule(const std::string& path, ModelFlags& flags) {
  flags.module = path;
  UseModule(std::shared_ptr<const Graph>(ir::ReadModule(path)), flags);
}

namespace {

bool IsOnnx(const std::string& path) { return path.ends_with(".onnx"); }

}  // namespace

bool IsExported(const std::string& path) {
  return path.ends_with(".pt2") || IsOnnx(path);
}

models::CustomModel ReadExported(const std::string& path) {
  return IsOnnx(path) ? models::ImportOnnx(path) : models::ImportTorch(path);
}

void UseExported(const std::string& path, ModelFlags& flags) {
  models::CustomModel model = ReadExported(path);
  flags.arch = model.name;
  if (model.batch != 0) flags.options.batch = model.batch;
  flags.options.image_size = model.image_size;
  models::RegisterModel(std::move(model));
}

models::ImportedProgram ReadProgram(const std::string& path,
                                    const models::GivenTensor& given) {
  std::vector<uint8_t> file;
  ReadFile(path, ErrorCode::kUsage, file);
  return IsOnnx(path) ? models::ImportOnnxProgram(path, file, given)
                      : models::ImportTorchProgram(path, file, given);
}

const models::CustomModel* CustomOf(const ModelFlags& flags) {
  return flags.custom != nullptr ? flags.custom.get()
                                 : models::FindCustomModel(flags.arch);
}

bool IsFed(const ModelFlags& flags, bool labels) {
  if (flags.graph == nullptr || ReadsTensors(*flags.graph)) return true;
  return (labels ? FindData(*flags.graph, "labels", IsLabels)
                 : FindData(*flags.graph, "images", IsImage)) != nullptr;
}

void CheckFed(const ModelFlags& flags, bool labels) {
  FUSOR_CHECK(IsFed(flags, /*labels=*/false), kGraph,
              "{}: expected one data input of images, u8 [N,S,S,3] or float "
              "[N,3,S,S], or one named images",
              flags.module);
  FUSOR_CHECK(
      !labels || IsFed(flags, /*labels=*/true), kGraph,
      "{}: expected one integer data input [N] of labels, or one named labels",
      flags.module);
}

}  // namespace fusor::tools
