#include "models/import/imported_model.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::models {
namespace {

// Weight of auxiliary losses, as in GoogLeNet (Szegedy et al., "Going Deeper
// with Convolutions", 2015).
constexpr double kAuxiliaryWeight = 0.3;

// Returns the shape of a classifier's images, with -1 for symbolic extents.
const ir::Shape& ImageShape(const std::string& path,
                            std::span<const ImportedInput> inputs) {
  const std::string got = Join(inputs, " and ", [](const ImportedInput& input) {
    return input.shape.empty() ? std::string("a scalar")
                               : Join(input.shape, "x", [](int64_t extent) {
                                   return extent < 0
                                              ? std::string("N")
                                              : fmt::format("{}", extent);
                                 });
  });
  const bool fits = inputs.size() == 1 && inputs[0].is_f32 &&
                    inputs[0].shape.size() == 4 && inputs[0].shape[1] == 3 &&
                    inputs[0].shape[2] == inputs[0].shape[3];
  FUSOR_CHECK(fits, kGraph,
              "{}: expected one input, float32 images Nx3xSxS, got {}", path,
              got.empty() ? "none" : got);
  return inputs[0].shape;
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

void ClassifyResults(Layers& layers, const std::string& path,
                     const std::vector<ir::Value*>& results) {
  const ir::TensorType& logits = results.at(0)->type();
  FUSOR_CHECK(logits.rank() == 2 && logits.shape[0] == layers.options().batch,
              kGraph, "{}: first result: expected logits [{},C], got {}", path,
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

CustomModel ImportedClassifier(
    const std::string& path, std::span<const ImportedInput> inputs,
    int64_t num_classes,
    std::function<void(ir::Graph&, Phase, const ModelOptions&)> build,
    std::function<std::vector<ir::TensorSource>()> weights) {
  const std::string stem = std::filesystem::path(path).stem().string();
  const ir::Shape& images = ImageShape(path, inputs);
  CustomModel model;
  model.name = "module:" + stem;
  model.batch = std::max<int64_t>(images[0], 0);
  model.image_size = std::max<int64_t>(images[2], 0);
  model.num_classes = num_classes;
  model.normalizes = true;
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
