#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/fusor/flags/model_flags.h"

namespace fusor::tools {

// Flags shared by several commands. Each Add function declares them on a
// command. The flags struct must outlive the command.

// Returns the options under these --help headings that differ from their
// default, by first long name. List values are joined by commas.
std::map<std::string, std::string> GivenOptions(
    const CLI::App& app, std::span<const std::string_view> headings);

// Returns all options under these headings, named as in NVIDIA's logs:
// "batch_size".
std::map<std::string, std::string> Parameters(
    const CLI::App& app, std::span<const std::string_view> headings);

// Declares "--arch" etc., and "--module FILE" (module_model.h).
void AddModelFlags(CLI::App& app, ModelFlags& flags);

// What to dump of each compilation (tools/inspect/dump/dumper.h).
struct DumpFlags {
  std::string to;  // folder, "-" for stdout; empty: nothing
  std::string pass, module, pipeline;
  std::vector<std::string> formats;
  // Filled in by the parser: the command, and those of its non-default options
  // that affect compilation.
  std::string command;
  std::map<std::string, std::string> options;
};
void AddDumpFlags(CLI::App& app, DumpFlags& flags);

struct CompileFlags {
  std::string backend = "cpu";
  std::string target;  // empty: this machine
  int threads = 0;
  std::string cuda_graph = "on";
  int64_t graph_steps = 1;
  std::string fusion = "on";
  std::string rounding = "fast";
  std::string winograd = "on";
  std::string bn_lowering = "auto";
  std::string dtype = "fp32";
  bool amp = false;
  std::string opt_level;  // empty: set by --amp
  std::vector<std::string> amp_allow, amp_deny;
  std::vector<std::string> substitutes;  // NAME:FILE
  std::string cache = "on";
  std::string choices;  // file; empty: built-in heuristics, or the default file
  bool tune = false;
  std::vector<std::string> disabled, only;
  std::vector<std::string> fuel;  // "PASS=N"
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
  double lr = 0.1;
  int64_t lr_images = 0;  // batch size that `lr` is for; 0: do not scale
  std::string schedule = "cosine";
  std::string lr_update = "step";
  double end_lr = 0;
  double power = 2;
  int64_t cycle_epochs = 0;  // of the first cycle; 0: no restarts
  int64_t cycle_factor = 1;
  double momentum = 0.9;
  double weight_decay = 1e-4;
  bool norm_weight_decay = false;
  bool nesterov = false;
  bool decoupled = false;
  std::string optimizer = "sgd";
  double beta1 = 0.9;
  double beta2 = 0.999;
  double alpha = 0.99;
  double eps = 1e-8;
  double lars_coefficient = 0.001;
  double clip_norm = 0;
  double ema_decay = 0;
  std::vector<std::string> groups;  // "REGEX:lr-scale=0.1,weight-decay=0"
  double static_loss_scale = 0;     // not given: 1, or set by the opt level
  bool dynamic_loss_scale = false;
  double initial_loss_scale = 65536;
  int64_t loss_scale_window = 2000;
  double loss_scale_growth = 2;
  double loss_scale_backoff = 0.5;
  double min_loss_scale = 1;
  double max_loss_scale = 16777216;
  int64_t overflow_limit = 50;
  double warmup_epochs = 0;
  int64_t warmup_steps = 0;
  std::vector<int64_t> milestones;  // epochs
  double gamma = 0.1;
  // Filled in by the parser: given flags of options that not all optimizers
  // have, "momentum".
  std::set<std::string> given;
};
// Declares the flags that are compiled in: momentum, decay, loss scale.
void AddOptimizerFlags(CLI::App& app, OptimizerFlags& flags);
// Declares the learning rate schedule.
void AddScheduleFlags(CLI::App& app, OptimizerFlags& flags);

// Random changes of training images; see runtime::RandomOpsOptions.
struct AugmentFlags {
  std::string policy = "none";
  int magnitude = 9;
  std::vector<double> jitter;  // one, three or four values
  double lighting = 0;
  double grey = 0;
  double blur = 0;
  double erasing = 0;
  bool repeats = false;
  int repetitions = 3;
};

struct DataFlags {
  int rank = 0;  // not flags: this process's shard of the data
  int world_size = 1;
  std::string path;
  bool synthetic = false;
  int workers = 2;
  int prefetch = 4;
  std::string bad_record = "fail";
  std::string transform;  // for training; empty: by arch
  AugmentFlags augment;
  std::string val_transform;  // for evaluation; empty: by arch
  int64_t val_resize = 0;     // shorter side; 0: from the crop
  int64_t val_crop = 0;       // 0: the image size
  int64_t max_per_class = 0;
  uint64_t seed = 0;
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
