#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "ir/support/environment.h"
#include "ir/support/error.h"
#include "models/model.h"
#include "runtime/distributed/rank_environment.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/train_flags.h"
#include "tools/fusor/setup/auto_config.h"
#include "tools/fusor/setup/checkpointing.h"
#include "tools/fusor/setup/rank_run.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/training_run.h"

namespace fusor::tools {
namespace {

// Returns the file of choices of a run with --auto: kept in the workspace, for
// runs that resume.
std::string AutoFile(const TrainFlags& flags) {
  if (!flags.compile.choices.empty()) return flags.compile.choices;
  const std::string& workspace = flags.checkpoint.workspace;
  if (!workspace.empty()) {
    MakeFolder("--workspace", workspace);
    return workspace + "/auto.choices";
  }
  const std::string cache = CacheDirectory();
  FUSOR_CHECK(!cache.empty(), kUsage,
              "--auto: expected --choices FILE or --workspace DIR, since there "
              "is no cache folder (FUSOR_CACHE_DIR)");
  MakeFolder("--auto", cache + "/choices");
  const std::string file = fmt::format("{}/choices/auto.{}.txt", cache,
                                       models::CanonicalArch(flags.model.arch));
  std::error_code ignored;
  std::filesystem::remove(file, ignored);
  return file;
}

void ChooseAndTrain(const CLI::App& command, const TrainFlags& flags) {
  FUSOR_CHECK(!flags.compile.tune, kUsage,
              "--auto and --tune: expected one of them");
  const auto place = runtime::FindRankEnvironment(LauncherVariable);
  FUSOR_CHECK(place.world_size == 1 || !flags.compile.choices.empty() ||
                  !flags.checkpoint.workspace.empty(),
              kUsage,
              "--auto: expected --choices FILE or --workspace DIR, which all "
              "ranks read, got neither");
  const std::string file = AutoFile(flags);
  if (place.rank == 0) RestoreChoices(flags.checkpoint, file);
  ChooseAndRestart(
      command, flags.automatic, place.rank, file,
      place.rank == 0 ? TextStream({flags.json}) : OpenNullStream());
}

}  // namespace

void AddTrain(CLI::App& app, Run* run) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* command = app.add_subcommand("train", "Train a model");
  AddTrainFlags(*command, *flags);
  AddAutoFlags(*command, flags->automatic);
  command->callback([flags, run, command] {
    SettleTrainFlags(*command, *flags);
    if (flags->automatic.on) {
      *run = [flags, command] { ChooseAndTrain(*command, *flags); };
      return;
    }
    *run = [flags] { TrainingRun(*flags, {}).Run(); };
  });
}

}  // namespace fusor::tools
