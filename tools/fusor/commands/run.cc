#include <fmt/core.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "codegen/compiler.h"
#include "ir/io/parser.h"
#include "ir/support/error.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program_file.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/model_flags.h"
#include "tools/fusor/flags/train_flags.h"

namespace fusor::tools {
namespace {

using runtime::ProgramFile;

struct RunCommandFlags {
  TrainFlags train;
  std::string file;
  bool recompile = false;
};

// Returns the options given to this command as words.
std::vector<std::string> GivenWords(const CLI::App& command) {
  std::vector<std::string> words;
  for (const CLI::Option* option : command.get_options()) {
    const bool own =
        option->get_name() == "FILE" || option->get_name() == "--recompile";
    if (option->count() == 0 || own) continue;
    for (std::string& word : WordsOf(*option)) words.push_back(std::move(word));
  }
  return words;
}

// Returns the flags of `fusor train` with the options of the file, followed by
// those of this command line.
TrainFlags FlagsFor(const ProgramFile& file, const std::string& path,
                    const CLI::App& command) {
  TrainFlags flags;
  CLI::App app("", "train");
  AddTrainFlags(app, flags);
  if (!file.module.empty()) {
    flags.model.module = path;
    UseModule(ir::Parse(file.module, path), flags.model);
  }
  std::vector<std::string> words = file.options;
  for (std::string& word : GivenWords(command)) {
    words.push_back(std::move(word));
  }
  app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  SettleTrainFlags(app, flags);
  return flags;
}

// Returns why the step cannot run on this machine; empty if it can. Throws
// kDevice if its backend finds no device.
std::string Obstacle(const ProgramFile& file, const std::string& path) {
  runtime::Backend& backend = runtime::LoadBackend(file.backend);
  FUSOR_CHECK(
      backend.device_count() > 0, kDevice,
      "{}: compiled for {}, but backend {} finds no device on this machine",
      path, file.origin.target, file.backend);
  // A compiler without a target compiles for the local device.
  const auto compiler =
      backend.CreateCompiler("", {.threads = file.origin.threads});
  const int threads = backend.CreateCompiler("", {})->target().threads;
  if (compiler->target().threads > threads) {
    return fmt::format("compiled for {} threads, this machine has {}",
                       file.origin.threads, threads);
  }
  return runtime::Mismatch(file.origin,
                           runtime::OriginHere(FUSOR_VERSION, *compiler));
}

void RunProgramFile(const RunCommandFlags& given, const CLI::App& command) {
  ProgramFile file = runtime::ReadProgramFile(given.file);
  FUSOR_CHECK(file.programs[0].kind == codegen::ProgramKind::kTrain, kUsage,
              "{}: expected a training step, got an evaluation", given.file);
  TrainFlags flags = FlagsFor(file, given.file, command);
  if (given.recompile) {
    fmt::print(stderr, "recompiling {} for this machine\n", given.file);
    return RunTraining(flags, {});
  }
  const std::string obstacle = Obstacle(file, given.file);
  FUSOR_CHECK(obstacle.empty(), kDevice,
              "{}: {}; use --recompile to compile it for this machine",
              given.file, obstacle);
  flags.compile.backend = file.backend;
  flags.compile.threads = file.origin.threads;
  flags.program_file = given.file;
  RunTraining(flags, std::move(file));
}

}  // namespace

void AddRun(CLI::App& app, Run* run) {
  auto flags = std::make_shared<RunCommandFlags>();
  CLI::App* command = app.add_subcommand(
      "run", "Train with a program file of `fusor compile -o FILE`");
  command->add_option("FILE", flags->file, "Program file")
      ->required()
      ->type_name("FILE");
  AddGraphFlag(*command, flags->train.compile);
  AddConnectionFlags(*command, flags->train.ranks);
  AddRunFlags(*command, flags->train);
  command->add_flag("--recompile", flags->recompile,
                    "Recompile the program for this machine");
  command->callback([flags, command, run] {
    *run = [flags, command] { RunProgramFile(*flags, *command); };
  });
}

}  // namespace fusor::tools
