#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "models/model.h"
#include "tools/python/host_array.h"
#include "tools/python/options.h"

namespace fusor::python {

// A model to compile: a built-in one, an archive of torch.export, or a graph.
struct Model {
  std::string name;  // "resnet18"; "module:NAME" for the others
  std::optional<models::CustomModel> archive;
  std::shared_ptr<const ir::Graph> graph;
  // Batch size, image size, normalisation, ... of built-in models and archives.
  models::ModelOptions options{};
};

// Opens a built-in model by name, or a file: .pt2 or .onnx, otherwise IR text
// or protobuf. Throws kUsage, with the nearest name, for a name that is
// neither, and what tools::ReadExported and ir::ReadModule throw.
Model OpenModel(const std::string& source);
Model ModelOf(std::shared_ptr<const ir::Graph> graph);

// Sets the model's options by the keywords and by an example of its data
// inputs, which may be empty. Images, uint8 (N, S, S, 3) or float32 (N, 3, S,
// S), determine batch size, image size and whether the step normalises. An
// archive that is no classifier of images takes the types of the example.
// Throws kUsage for keywords that contradict the example or do not apply to the
// model.
void FitModel(const Options& options, const std::vector<HostArray>& example,
              Model& model);

// Returns a new graph of the model. Throws kGraph for kEval of a graph.
std::unique_ptr<ir::Graph> Build(const Model& model, const Options& options,
                                 models::Phase phase);

}  // namespace fusor::python
