#pragma once

// The result of importing a model file, and functions that all importers use.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/interpreter/tensor_source.h"
#include "ir/io/named_tensor.h"
#include "models/layers.h"

namespace fusor::models {

// A program as it was exported: tensors in, tensors out. Parameters and running
// statistics are state.
struct ImportedProgram {
  std::unique_ptr<ir::Graph> graph;
  std::vector<ir::NamedTensor> weights;  // of parameters and statistics
};
// Returns the tensor given for an input, which determines symbolic extents.
using GivenTensor = std::function<const ir::NamedTensor&(const std::string&)>;

// Inputs and results of a model, read from its file. An extent of -1 depends on
// the batch size or on other given sizes.
struct ImportedInterface {
  std::vector<ModelInput> inputs{};
  std::vector<ir::TensorType> types{};  // of the inputs
  size_t rank = 2;                      // of the first result
  int64_t num_classes = 0;              // 0: unknown
};
// Returns copies of tensors.
std::vector<ir::NamedTensor> CopiesOf(
    const std::vector<ir::TensorSource>& sources);

// Throws kGraph unless a given shape [..] equals the expected one except for
// symbolic extents.
void CheckGivenShape(const std::string& path, const std::string& input,
                     const ir::Shape& expected, const ir::Shape& given);

// Adds an input of a program.
ir::Value* AddInput(Layers& layers, const ImportedInterface& interface,
                    size_t index);

// Adds the loss. `results` are logits [N,C], followed by the logits of
// auxiliary classifiers, of the same type; 0.3 times their losses are added, as
// in GoogLeNet. For other results, and for other targets than a label per
// sample, see AddDenseLoss. Throws kGraph for results that neither takes.
void AddResultLoss(Layers& layers, const std::string& path,
                   const std::vector<ir::Value*>& results);

// Returns a model, named "module:STEM" after the file. `build` adds the network
// and its loss to a graph. Throws kGraph unless there are inputs, all [N,..].
CustomModel TrainableModel(
    const std::string& path, const ImportedInterface& interface,
    std::function<void(ir::Graph&, Phase, const ModelOptions&)> build,
    std::function<std::vector<ir::TensorSource>()> weights);

}  // namespace fusor::models
