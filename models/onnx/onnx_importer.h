#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "models/import/imported_model.h"
#include "models/model.h"

namespace fusor::models {

// Reads a model in ONNX's format (.onnx) and returns it as a classifier, see
// ImportedClassifier. Its first result must be logits [N,C], or their softmax.
// In kTrain, layers use batch statistics and dropout if they did so in the
// exported model; in kEval no layer does. Float initialisers that layers use as
// weights or running statistics become parameters or statistics of the same
// names; other tensors become constants. If the number of classes differs from
// the model's, the last layer with a weight is replaced for each result.
//
// Throws kUsage if the file cannot be read. Throws kGraph for a damaged model
// and, when built, for an unknown operator, with its node.
CustomModel ImportOnnx(const std::string& path);
// The same for a model's bytes.
CustomModel ImportOnnx(const std::string& path, std::span<const uint8_t> file);

// Imports a program for exec: inputs and results have the model's names.
// Operands that determine shapes, such as those of Reshape, are read from the
// given tensors if they are inputs.
ImportedProgram ImportOnnxProgram(const std::string& path,
                                  std::span<const uint8_t> file,
                                  const GivenTensor& given);

}  // namespace fusor::models
