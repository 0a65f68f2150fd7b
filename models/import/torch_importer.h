#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "models/import/imported_model.h"
#include "models/model.h"

namespace fusor::models {

// Reads an archive of torch.export.save (.pt2), named "module:STEM" after the
// file. It has one input and the results of AddResultLoss. In kTrain, layers
// use batch statistics and dropout if they did so in the exported program; in
// kEval no layer does. Parameters and running statistics have torch's names;
// other buffers are constants. With another number of classes than the
// archive's, the last linear or convolution layer of each result is replaced.
//
// The weights stay in the file and are read from there when they are loaded.
//
// Throws kUsage if the file cannot be read. Throws kGraph for a damaged archive
// and, when built, for an unknown operator, with the Python line that calls it.
CustomModel ImportTorch(const std::string& path);
// The same for an archive's bytes, which must outlive the model.
CustomModel ImportTorch(const std::string& path, std::span<const uint8_t> file);

// Imports a program for exec: results are the outputs "output0", "output1", ...
ImportedProgram ImportTorchProgram(const std::string& path,
                                   std::span<const uint8_t> file,
                                   const GivenTensor& given);

}  // namespace fusor::models
