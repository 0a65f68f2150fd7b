#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "models/model.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/data/datasets/image_folder.h"

namespace fusor::tools {

// Returns metadata for weights: architecture, image size, number of classes,
// normalisation and, if `images` is not null, class names.
runtime::Metadata DescribeWeights(const std::string& arch,
                                  const models::ModelOptions& model,
                                  const runtime::ImageFolder* images);

// Whether the weights' classes must be those of this run.
enum class ClassCheck { kSame, kAny };

// Throws kCheckpoint, naming the flag and both values, if the description in
// `file` differs from `expected`. Weights without a description, from other
// programs, are accepted. `path` names the file in errors.
void CheckDescription(const std::string& path, const runtime::Metadata& file,
                      const runtime::Metadata& expected, ClassCheck classes);

// Throws kCheckpoint if the file has tensors that the model lacks.
void CheckUnused(const std::string& path,
                 const std::vector<std::string>& unused);

// Declares "--allow-mismatch", which disables the two checks above.
void AddMismatchFlag(CLI::App& app, bool& allow);

// Returns the class names by label; empty if the description has none.
std::vector<std::string> ClassNames(const runtime::Metadata& description);

}  // namespace fusor::tools
