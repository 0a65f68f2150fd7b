#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/fusor/flags/model_flags.h"

namespace fusor::tools {

// Flags that several commands share. Each Add function declares them on a
// command; the struct must outlive it.

// The options under these headings of --help that do not have their default, by
// their first long name; the values of a list are joined by commas.
std::map<std::string, std::string> GivenOptions(
    const CLI::App& app, std::span<const std::string_view> headings);

// All options under these headings, given or not, named and written as NVIDIA's
// logs do: "batch_size".
std::map<std::string, std::string> Parameters(
    const CLI::App& app, std::span<const std::string_view> headings);

// "--arch" and the rest, or "--module FILE" (module_model.h).
void AddModelFlags(CLI::App& app, ModelFlags& flags);

// What to write of each compilation (tools/inspect/dump/dumper.h).
struct DumpFlags {
  std::string to;  // folder, "-" for stdout; empty: nothing
  std::string pass, module, pipeline;
  std::vector<std::string> formats;
  // Filled in by the parser: the command, and those of its options that decide
  // what is compiled and do not have their default.
  std::string command;
  std::map<std::string, std::string> options;
};
void AddDumpFlags(CLI::App& app, DumpFlags& flags);

struct CompileFlags {
  std::string backend = "cpu";
  std::string target;  // empty: this machine
  int threads = 0;
  std::string cuda_graph = "on";
  std::string fusion = "on";
  std::string rounding = "fast";
  std::string winograd = "on";
  std::string bn_lowering = "kernels";
  std::string dtype = "fp32";
  bool amp = false;
  std::string opt_level;  // empty: as --amp says
  std::vector<std::string> amp_allow, amp_deny;
  std::vector<std::string> substitutes;  // NAME:FILE
  std::string cache = "on";
  std::string choices;  // file; empty: the built-in rule, or a default place
  bool tune = false;
  std::vector<std::string> disabled, only;
  std::vector<std::string> fuel;  // "PASS=N"
  bool verify = false;
  bool verify_each = false;
  DumpFlags dump;
  bool warns = true;  // no flag: false on ranks other than the first
};
// --cuda-graph alone.
void AddGraphFlag(CLI::App& app, CompileFlags& flags);
// Without those of the dump, which a command declares when it opens a dumper.
void AddCompileFlags(CLI::App& app, CompileFlags& flags);
// A given option as words of a command line.
std::vector<std::string> WordsOf(const CLI::Option& option);
// Those of them and of the optimizer's that were given, loss scale included, as
// words of a command line; not the edited kernels.
std::vector<std::string> CompileWords(const CLI::App& app);
// For commands that compile and do not run.
void AddTargetFlag(CLI::App& app, CompileFlags& flags);

struct OptimizerFlags {
  double lr = 0.1;
  int64_t lr_images = 0;  // that it is for; 0: as it is
  std::string schedule = "cosine";
  std::string lr_update = "step";
  double end_lr = 0;
  double power = 2;
  double momentum = 0.9;
  double weight_decay = 1e-4;
  bool norm_weight_decay = false;
  bool nesterov = false;
  bool decoupled = false;
  std::string optimizer = "sgd";
  double lars_coefficient = 0.001;
  double clip_norm = 0;
  double ema_decay = 0;
  double static_loss_scale = 0;  // not given: 1, or as the level says
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
};
// What is compiled in: momentum, decay, loss scale.
void AddOptimizerFlags(CLI::App& app, OptimizerFlags& flags);
// The learning rate over time.
void AddScheduleFlags(CLI::App& app, OptimizerFlags& flags);

struct DataFlags {
  int rank = 0;  // no flags: which part of the data is this process'
  int world_size = 1;
  std::string path;
  bool synthetic = false;
  int workers = 2;
  int prefetch = 4;
  std::string bad_record = "fail";
  std::string transform;      // of training; empty: by arch
  std::string val_transform;  // of evaluation; empty: by arch
  int64_t val_resize = 0;     // shorter side; 0: by the crop
  int64_t val_crop = 0;       // 0: the image size
  int64_t max_per_class = 0;
  uint64_t seed = 0;
};
// How images are read.
void AddLoaderFlags(CLI::App& app, DataFlags& flags);
// Which images are read, and how.
void AddReaderFlags(CLI::App& app, DataFlags& flags);
// Those, and what training makes of them.
void AddDataFlags(CLI::App& app, DataFlags& flags);

// What evaluation makes of images.
void AddEvaluationFlags(CLI::App& app, DataFlags& flags);

// "--json FILE", "-" for stdout.
void AddJsonFlag(CLI::App& app, std::string& path);

}  // namespace fusor::tools
