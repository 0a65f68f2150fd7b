// Fuzzes models in ONNX's format.

#include <map>
#include <string>
#include <utility>

#include "models/onnx/onnx_importer.h"
#include "models/onnx/onnx_model.h"
#include "tests/fuzz/formats/format.h"

namespace fusor::fuzz {

// Imports a model as a program, and as a classifier in both phases.
void ReadOnnx(std::string_view bytes) {
  const std::span<const uint8_t> file = {
      reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
  const std::string path = ScratchFolder() + "/model.onnx";
  // Inputs are ones of the declared shapes. Symbolic extents are 2.
  std::map<std::string, ir::NamedTensor> given;
  for (const models::OnnxInput& input :
       models::ParseOnnx(path, file).graph.inputs) {
    ir::NamedTensor tensor{input.name, {ir::DType::kU8, input.shape, {}}, {}};
    for (int64_t& extent : tensor.type.shape) extent = extent < 0 ? 2 : extent;
    ir::CheckType(tensor.type);
    constexpr int64_t kMost = 1 << 16;
    if (tensor.type.num_elements() > kMost) return;
    tensor.bytes.assign(static_cast<size_t>(tensor.type.num_bytes()), 1);
    given.emplace(input.name, std::move(tensor));
  }
  const models::ImportedProgram program = models::ImportOnnxProgram(
      path, file, [&](const std::string& name) -> const ir::NamedTensor& {
        return given.at(name);
      });
  Require(program.graph != nullptr, "no graph");
  const models::CustomModel model = models::ImportOnnx(path, file);
  models::ModelOptions options{.batch = 2, .image_size = 16};
  if (model.batch != 0) options.batch = model.batch;
  if (model.image_size != 0) options.image_size = model.image_size;
  if (model.num_classes != 0) options.num_classes = model.num_classes;
  if (!model.classifies) {
    models::SampleTypes sample;
    for (const models::ModelInput& input : model.inputs) {
      ir::TensorType type = program.graph->FindInput(input.name)->type();
      type.shape.erase(type.shape.begin());
      sample.inputs.push_back(std::move(type));
    }
    options.sample = std::move(sample);
  }
  for (const auto phase : {models::Phase::kTrain, models::Phase::kEval}) {
    Require(model.build(phase, options) != nullptr, "no graph");
  }
}

}  // namespace fusor::fuzz
