#include "tools/fusor/flags/train_flags.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "ir/support/error.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/setup/model_setup.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/tuning.h"

namespace fusor::tools {

namespace {

// Options under these headings affect the computed numbers,
constexpr std::array<std::string_view, 7> kTrainHeadings = {
    "Model",    "Compilation", "Training", "Loss scale",
    "Schedule", "Data",        "Run"};
// those under these must be equal on all ranks,
constexpr std::array<std::string_view, 8> kOfAllRanks = {
    "Model",    "Compilation", "Training", "Loss scale",
    "Schedule", "Data",        "Run",      "Ranks"};
// and these do not affect the numbers.
constexpr std::array<std::string_view, 20> kNotDeciding = {
    "--module",         "--overflow-limit",  "--workers",
    "--prefetch",       "--synthetic",       "--kernel-cache",
    "--verify",         "--verify-each",     "--bad-record",
    "--print-freq",     "--training-only",   "--evaluate",
    "--evaluate-every", "--run-epochs",      "--prof",
    "--stop-at-top1",   "--choices",         "--tune",
    "--cuda-graph",     "--cuda-graph-steps"};

void AddLengthFlags(CLI::App& app, TrainFlags& f) {
  app.option_defaults()->group("Run");
  app.add_option("--epochs", f.options.epochs, "Passes over the data")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 30));
  app.add_option(
         "--iterations", f.options.iterations,
         "Stop after this many steps; the schedule ends there too (-1: off)")
      ->capture_default_str()
      ->check(WholeNumber(-1));
  app.add_option(
         "--run-epochs", f.run_epochs,
         "Stop this run after this many epochs; keep the schedule (-1: off)")
      ->capture_default_str()
      ->check(WholeNumber(-1, 1 << 30));
  app.add_option("--prof", f.prof,
                 "Stop this run after N steps; keep the schedule (-1: off)")
      ->capture_default_str()
      ->type_name("N")
      ->check(WholeNumber(-1));
  app.add_option("-p,--print-freq", f.options.print_every,
                 "Steps per line of the log")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 30));
  app.add_option("--evaluate-every", f.options.eval_every,
                 "Epochs between evaluations (0: never)")
      ->capture_default_str()
      ->check(WholeNumber(0));
  app.add_option("--stop-at-top1", f.stop_at_top1,
                 "Stop once an evaluation reaches this top-1 accuracy (0: off)")
      ->capture_default_str()
      ->type_name("PERCENT")
      ->check(Number(0, 100));
  app.add_option("--overflow-limit", f.options.overflow_limit,
                 "Stop after this many skipped updates in a row (0: never)")
      ->capture_default_str()
      ->check(WholeNumber(0));
  app.add_flag("--training-only", f.training_only, "Do not evaluate");
  app.add_flag("--evaluate", f.evaluate_only,
               "Evaluate the weights of --resume or --pretrained-weights "
               "instead of training");
  app.option_defaults()->group("Options");
}

// Returns the limit on steps by --prof and --run-epochs; -1: none.
int64_t RunSteps(const TrainFlags& flags, int64_t steps_per_epoch) {
  if (flags.run_epochs < 0) return flags.prof;
  const int64_t steps = flags.run_epochs * steps_per_epoch;
  return flags.prof < 0 ? steps : std::min(steps, flags.prof);
}

}  // namespace

void AddOptimizerBatchFlag(CLI::App& app, int64_t& images) {
  app.add_option("--optimizer-batch-size", images,
                 "Images per update of all ranks, by accumulating gradients "
                 "(-1: one step)")
      ->group("Run")
      ->capture_default_str()
      ->check(WholeNumber(-1));
}

void AddRunFlags(CLI::App& app, TrainFlags& f) {
  AddDataFlags(app, f.data);
  AddEvaluationFlags(app, f.data);
  AddScheduleFlags(app, f.optimizer);
  AddGraphStepsFlag(app, f.compile);
  AddLengthFlags(app, f);
  AddCheckpointFlags(app, f.checkpoint);
  AddLogFlags(app, f.log);
  AddDebugFlags(app, f.debug);
  AddJsonFlag(app, f.json);
}

void AddTrainFlags(CLI::App& app, TrainFlags& f) {
  AddModelFlags(app, f.model);
  AddOptimizerFlags(app, f.optimizer);
  AddCompileFlags(app, f.compile);
  AddTuneFlag(app, f.compile);
  AddDumpFlags(app, f.compile.dump);
  AddOptimizerBatchFlag(app, f.optimizer_batch);
  AddRankFlags(app, f.ranks);
  AddRunFlags(app, f);
  AddRecipeFlags(app, f.recipe);
}

void SettleTrainFlags(const CLI::App& app, TrainFlags& f) {
  if (f.recipe.ignores_data) f.data.path.clear();
  if (f.evaluate_only) f.checkpoint.off = true;
  f.deciding = GivenOptions(app, kTrainHeadings);
  for (std::string_view name : kNotDeciding)
    f.deciding.erase(std::string(name));
  f.settings = RankSettings(app, kOfAllRanks);
  f.parameters = Parameters(app, kTrainHeadings);
  f.parameters["data"] = f.data.synthetic ? "synthetic" : f.data.path;
}

int64_t MicroBatches(const TrainFlags& flags) {
  const int64_t ranks = flags.data.loader.world_size;
  const int64_t batch = flags.model.options.batch * ranks;
  const int64_t wanted = flags.optimizer_batch;
  if (wanted < 0) return 1;
  FUSOR_CHECK(wanted > 0 && wanted % batch == 0, kUsage,
              "--optimizer-batch-size {}: expected a multiple of the {} images "
              "per step (-b {}, {})",
              wanted, batch, flags.model.options.batch,
              ranks == 1 ? "one rank" : fmt::format("{} ranks", ranks));
  return wanted / batch;
}

runtime::TrainOptions MakeTrainOptions(const TrainFlags& flags,
                                       const runtime::TrainPosition& start,
                                       int64_t steps_per_epoch) {
  runtime::TrainOptions options = flags.options;
  options.run_steps = RunSteps(flags, steps_per_epoch);
  options.start = start;
  options.save_every = flags.checkpoint.every;
  if (flags.stop_at_top1 > 0) options.stop_at_top1 = flags.stop_at_top1 / 100;
  options.seed = flags.data.loader.seed;
  options.mix = flags.model.mix;
  options.micro_batches = MicroBatches(flags);
  options.graph_steps = flags.compile.device.graph_steps;
  CheckGraphSteps(flags.compile);
  FUSOR_CHECK(options.graph_steps == 1 || options.micro_batches == 1, kUsage,
              "--cuda-graph-steps {} and --optimizer-batch-size {}: expected "
              "one of them",
              options.graph_steps, flags.optimizer_batch);
  const int64_t total = options.iterations >= 0
                            ? options.iterations
                            : options.epochs * steps_per_epoch;
  options.lr = MakeSchedule(flags.optimizer,
                            flags.model.options.batch * options.micro_batches *
                                flags.data.loader.world_size,
                            options.epochs, steps_per_epoch, total);
  return options;
}

}  // namespace fusor::tools
