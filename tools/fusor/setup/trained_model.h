#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/datasets/image_folder.h"
#include "runtime/session.h"
#include "tools/fusor/flags/flag_groups.h"
#include "tools/inspect/dump/dumper.h"

namespace fusor::tools {

struct TrainedFlags {
  std::string weights;  // file
  bool allow_mismatch = false;
};
void AddTrainedFlags(CLI::App& app, TrainedFlags& flags);

// An evaluation program with loaded weights.
struct TrainedModel {
  std::unique_ptr<runtime::Session> session;
  int program = -1;
  int64_t classes = 0;
  std::vector<std::string> class_names;  // empty: unknown
};
// Opens the model. The number of classes is that of the flags, of `images` (may
// be null), or the one that the weights were trained for. Throws kCheckpoint if
// the weights do not fit the model or their description differs from it.
TrainedModel OpenTrained(const TrainedFlags& flags, const ModelFlags& model,
                         const CompileFlags& compile, const DataFlags& data,
                         const runtime::ImageFolder* images,
                         const std::shared_ptr<codegen::Dumper>& dumper);

}  // namespace fusor::tools
