#include "models/import/imported_model.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/str.h"
#include "models/import/dense_loss.h"

namespace fusor::models {
namespace {

// Weight of auxiliary losses, as in GoogLeNet (Szegedy et al., "Going Deeper
// with Convolutions", 2015).
constexpr double kAuxiliaryWeight = 0.3;

std::string InputText(const ir::TensorType& input) {
  return fmt::format("{}[{}]", ir::DTypeName(input.dtype),
                     Join(input.shape, ",", [](int64_t extent) {
                       return extent < 0 ? std::string("N")
                                         : fmt::format("{}", extent);
                     }));
}

// Returns whether the input can be images in bytes, which are normalised.
bool IsRgb(const ir::TensorType& input) {
  return ir::IsFloat(input.dtype) && input.rank() == 4 && input.shape[1] == 3;
}

// Returns whether the input can be images of an image data set.
bool IsImages(const ir::TensorType& input) {
  return input.dtype == ir::DType::kF32 && IsRgb(input) &&
         input.shape[2] == input.shape[3];
}

// Returns whether images have a label each.
bool Classifies(const ImportedInterface& interface) {
  return interface.types.size() == 1 && IsImages(interface.types[0]) &&
         interface.rank == 2;
}

}  // namespace

std::vector<ir::NamedTensor> CopiesOf(
    const std::vector<ir::TensorSource>& sources) {
  std::vector<ir::NamedTensor> tensors;
  for (const ir::TensorSource& source : sources) {
    tensors.push_back({source.name, source.type, ir::ReadWhole(source)});
  }
  return tensors;
}

void CheckGivenShape(const std::string& path, const std::string& input,
                     const ir::Shape& expected, const ir::Shape& given) {
  const bool fits =
      std::equal(given.begin(), given.end(), expected.begin(), expected.end(),
                 [](int64_t a, int64_t b) { return b < 0 || a == b; });
  FUSOR_CHECK(fits, kGraph, "{}: input {}: expected [{}], got [{}]", path,
              input, fmt::join(expected, ","), fmt::join(given, ","));
}

ir::Value* AddInput(Layers& layers, const ImportedInterface& interface,
                    size_t index) {
  if (!layers.options().sample.has_value() && Classifies(interface)) {
    return layers.Images();
  }
  ir::TensorType sample = interface.types.at(index);
  sample.shape.erase(sample.shape.begin());
  return layers.Input(index, interface.inputs[index].name, sample);
}

void AddResultLoss(Layers& layers, const std::string& path,
                   const std::vector<ir::Value*>& results) {
  const ir::TensorType& logits = results.at(0)->type();
  const std::optional<SampleTypes>& sample = layers.options().sample;
  const bool one_label =
      !sample.has_value() || !sample->target.has_value() ||
      (sample->target->shape.empty() && !ir::IsFloat(sample->target->dtype));
  if (logits.rank() != 2 || !one_label) {
    AddDenseLoss(layers, path, results);
    return;
  }
  FUSOR_CHECK(logits.shape[0] == layers.options().batch, kGraph,
              "{}: first result: expected logits [{},C], got {}", path,
              layers.options().batch, ToString(logits));
  std::vector<Layers::AuxiliaryLogits> auxiliary;
  for (size_t i = 1; i < results.size(); ++i) {
    FUSOR_CHECK(results[i]->type() == logits, kGraph,
                "{}: result {}: expected {}, got {}", path, i, ToString(logits),
                ToString(results[i]->type()));
    auxiliary.push_back({results[i], kAuxiliaryWeight});
  }
  layers.Classify(results[0], auxiliary);
}

CustomModel TrainableModel(
    const std::string& path, const ImportedInterface& interface,
    std::function<void(ir::Graph&, Phase, const ModelOptions&)> build,
    std::function<std::vector<ir::TensorSource>()> weights) {
  const bool batched =
      !interface.types.empty() &&
      std::ranges::all_of(interface.types, [&](const ir::TensorType& type) {
        return type.rank() > 0 &&
               (type.shape[0] < 0) == (interface.types[0].shape[0] < 0);
      });
  FUSOR_CHECK(batched, kGraph,
              "{}: expected inputs of a batch, such as float32 images "
              "[N,3,S,S] or int64 tokens [N,T], got {}",
              path,
              interface.types.empty()
                  ? "none"
                  : Join(interface.types, " and ", InputText));
  const std::string stem = std::filesystem::path(path).stem().string();
  const ir::TensorType& input = interface.types[0];
  CustomModel model;
  model.name = "module:" + stem;
  model.batch = std::max<int64_t>(input.shape[0], 0);
  if (IsImages(input)) {
    model.image_size = std::max<int64_t>(input.shape[2], 0);
  }
  model.num_classes = interface.num_classes;
  model.classifies = Classifies(interface);
  model.inputs = interface.inputs;
  model.normalizes = std::ranges::any_of(interface.types, IsRgb);
  model.trains = true;
  model.evaluates = true;
  model.weights = std::move(weights);
  model.build = [stem, build = std::move(build)](Phase phase,
                                                 const ModelOptions& options) {
    auto graph = std::make_unique<ir::Graph>(stem);
    build(*graph, phase, options);
    return graph;
  };
  return model;
}

}  // namespace fusor::models
