#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "models/model.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/data/datasets/image_folder.h"

namespace fusor::tools {

// What a model is trained as: metadata of its weights. Architecture, image
// size, number of classes, normalisation and, if `images` is not null, the
// names of the classes.
runtime::Metadata DescribeWeights(const std::string& arch,
                                  const models::ModelOptions& model,
                                  const runtime::ImageFolder* images);

// Whether weights are for the classes of this run, or for any.
enum class ClassCheck { kSame, kAny };

// Throws kCheckpoint, naming the flag and both values, if weights described by
// `file` were trained as something else than `expected`. Weights of other
// programs have no description and are taken as they are. `path` names the file
// in errors.
void CheckDescription(const std::string& path, const runtime::Metadata& file,
                      const runtime::Metadata& expected, ClassCheck classes);

// Throws kCheckpoint if the file has tensors that the model does not have.
void CheckUnused(const std::string& path,
                 const std::vector<std::string>& unused);

// "--allow-mismatch": do without the two checks above.
void AddMismatchFlag(CLI::App& app, bool& allow);

// Names of the classes, by label; empty if the description has none.
std::vector<std::string> ClassNames(const runtime::Metadata& description);

}  // namespace fusor::tools
