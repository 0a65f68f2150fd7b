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

// One input of a program; -1 is a symbolic extent.
struct ImportedInput {
  bool is_f32 = false;
  ir::Shape shape;
};
// Returns copies of tensors.
std::vector<ir::NamedTensor> CopiesOf(
    const std::vector<ir::TensorSource>& sources);

// Throws kGraph unless a given shape [..] equals the expected one except for
// symbolic extents.
void CheckGivenShape(const std::string& path, const std::string& input,
                     const ir::Shape& expected, const ir::Shape& given);

// Adds the loss of a classifier. `results` are logits [N,C], followed by the
// logits of auxiliary classifiers, of the same type; 0.3 times their losses are
// added, as in GoogLeNet. Throws kGraph for other results.
void ClassifyResults(Layers& layers, const std::string& path,
                     const std::vector<ir::Value*>& results);

// Returns a classifier, named "module:STEM" after the file. `build` adds the
// network and its loss to a graph. Throws kGraph unless the only input is
// images, f32 [N,3,S,S].
CustomModel ImportedClassifier(
    const std::string& path, std::span<const ImportedInput> inputs,
    int64_t num_classes,
    std::function<void(ir::Graph&, Phase, const ModelOptions&)> build,
    std::function<std::vector<ir::TensorSource>()> weights);

}  // namespace fusor::models
