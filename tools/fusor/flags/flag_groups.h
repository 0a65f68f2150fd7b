#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "passes/passes.h"
#include "runtime/backend/backend.h"
#include "runtime/data/loader.h"
#include "runtime/train/lr_schedule.h"
#include "tools/fusor/flags/model_flags.h"
#include "tools/inspect/dump/dumper.h"

namespace fusor::tools {

// Flags shared by several commands. Each Add function declares them on a
// command. The flags struct must outlive the command. Flags bind the fields of
// the options structs that the library takes; other members are flags that
// depend on each other or on the model.

// Returns the options under these --help headings that differ from their
// default, by first long name. List values are joined by commas.
std::map<std::string, std::string> GivenOptions(
    const CLI::App& app, std::span<const std::string_view> headings);

// Returns all options under these headings, named as in NVIDIA's logs:
// "batch_size".
std::map<std::string, std::string> Parameters(
    const CLI::App& app, std::span<const std::string_view> headings);

// Declares "--arch" etc., and "--module FILE".
void AddModelFlags(CLI::App& app, ModelFlags& flags);

// What to dump of each compilation (tools/inspect/dump/dumper.h).
struct DumpFlags {
  std::string to;  // folder, "-" for stdout; empty: nothing
  // No formats: the default. The parser fills in the command, and those of its
  // non-default options that affect compilation.
  inspect::DumpOptions options{.formats = {}};
};
void AddDumpFlags(CLI::App& app, DumpFlags& flags);

struct CompileFlags {
  std::string backend = "cpu";
  std::string target;  // empty: this machine
  runtime::BackendOptions device;
  // MakeCompileOptions sets the dtype and what other flags determine.
  passes::PassOptions passes = {.norm_lowering = passes::NormLowering::kAuto};
  std::vector<std::string> substitutes;  // NAME:FILE
  std::string dtype = "fp32";
  bool amp = false;
  std::string opt_level;  // empty: set by --amp
  bool cache = true;
  std::string choices;  // file; empty: built-in heuristics, or the default file
  bool tune = false;
  bool verify = false;
  bool verify_each = false;
  DumpFlags dump;
  bool warns = true;  // not a flag: false on ranks other than 0
};
// Declares only --cuda-graph.
void AddGraphFlag(CLI::App& app, CompileFlags& flags);
// Declares --cuda-graph-steps, for commands that run many steps.
void AddGraphStepsFlag(CLI::App& app, CompileFlags& flags);
// Excludes the dump flags; commands that open a dumper declare them.
void AddCompileFlags(CLI::App& app, CompileFlags& flags);
// Returns a given option as command-line words.
std::vector<std::string> WordsOf(const CLI::Option& option);
// Returns the given compile and optimizer flags, including loss scale, as
// command-line words. Excludes kernel substitutes.
std::vector<std::string> CompileWords(const CLI::App& app);
// For commands that compile but do not run.
void AddTargetFlag(CLI::App& app, CompileFlags& flags);

struct OptimizerFlags {
  passes::OptimizerOptions options;
  bool norm_weight_decay = false;
  passes::LossScaleOptions loss_scale = {.initial = 65536};  // if dynamic
  double static_loss_scale = 0;  // not given: 1, or set by the opt level
  // MakeSchedule converts its first cycle, milestones and warm-up, which are
  // in epochs, epochs and steps.
  runtime::LrScheduleOptions schedule = {.kind =
                                             runtime::LrScheduleKind::kCosine};
  int64_t lr_images = 0;  // batch size that the rate is for; 0: do not scale
  bool by_epoch = false;  // update the rate every epoch
  double warmup_epochs = 0;
  // Filled in by the parser: given flags of options that not all optimizers
  // have, "momentum".
  std::set<std::string> given;
};
// Declares the flags that are compiled in: momentum, decay, loss scale.
void AddOptimizerFlags(CLI::App& app, OptimizerFlags& flags);
// Declares the learning rate schedule.
void AddScheduleFlags(CLI::App& app, OptimizerFlags& flags);

struct DataFlags {
  // Includes this process's shard of the data, without a flag. The seed is also
  // that of initialisation and dropout.
  runtime::LoaderOptions loader = {.repetitions = 3};
  std::string path;
  bool synthetic = false;
  std::string transform;       // for training; empty: by arch
  std::vector<double> jitter;  // one, three or four values
  bool repeats = false;
  std::string val_transform;  // for evaluation; empty: by arch
  int64_t val_resize = 0;     // shorter side; 0: from the crop
  int64_t val_crop = 0;       // 0: the image size
  int64_t max_per_class = 0;
};
// How images are loaded.
void AddLoaderFlags(CLI::App& app, DataFlags& flags);
// Which images are read, and how.
void AddReaderFlags(CLI::App& app, DataFlags& flags);
// Reader flags, and the training transform.
void AddDataFlags(CLI::App& app, DataFlags& flags);

// The evaluation transform.
void AddEvaluationFlags(CLI::App& app, DataFlags& flags);

// Declares "--json FILE", "-" for stdout.
void AddJsonFlag(CLI::App& app, std::string& path);

}  // namespace fusor::tools
