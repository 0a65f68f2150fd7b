#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "models/model.h"
#include "runtime/data/datasets/image_set.h"
#include "runtime/data/files/safetensors.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "tools/fusor/flags/flag_groups.h"
#include "tools/inspect/dump/dumper.h"

namespace fusor::tools {

// The description's entry for the model's name.
inline constexpr char kArchKey[] = "fusor.arch";

// Returns metadata for weights: architecture, image size, number of classes,
// normalisation and, if `images` is not null, class names.
runtime::Metadata DescribeWeights(const std::string& arch,
                                  const models::ModelOptions& model,
                                  const runtime::ImageSet* images);

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

struct TrainedFlags {
  std::string command;  // for messages
  std::string weights;  // file; empty: those that the model brings
  bool allow_mismatch = false;
};
void AddTrainedFlags(CLI::App& app, TrainedFlags& flags);

// An evaluation program with loaded weights.
struct TrainedModel {
  std::unique_ptr<runtime::Session> session;
  runtime::Program* program = nullptr;  // of the session
  int64_t needed_bytes = 0;             // see NeededBytes
  int64_t classes = 0;
  std::vector<std::string> class_names;  // empty: unknown
};
// Opens the model. The number of classes is that of the flags, of `images` (may
// be null), or the one that the weights were trained for. Throws kCheckpoint if
// the weights do not fit the model or their description differs from it, and
// kUsage if there are none.
TrainedModel OpenTrained(const TrainedFlags& flags, const ModelFlags& model,
                         const CompileFlags& compile, const DataFlags& data,
                         const runtime::ImageSet* images,
                         const std::shared_ptr<inspect::Dumper>& dumper);

}  // namespace fusor::tools
