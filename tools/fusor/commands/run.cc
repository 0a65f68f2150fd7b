#include <fmt/core.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/program_file.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/train_flags.h"
#include "tools/fusor/setup/program_setup.h"
#include "tools/fusor/setup/training_run.h"

namespace fusor::tools {
namespace {

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

void RunProgramFile(const RunCommandFlags& given, const CLI::App& command) {
  runtime::ProgramFile file = runtime::ReadProgramFile(given.file);
  TrainFlags flags = ProgramFlags(file, given.file, GivenWords(command));
  if (given.recompile) {
    fmt::print(stderr, "recompiling {} for this machine\n", given.file);
    return TrainingRun(std::move(flags), {}).Run();
  }
  UseProgram(file, given.file, flags);
  TrainingRun(std::move(flags), std::move(file)).Run();
}

}  // namespace

void AddRun(CLI::App& app, Run* run) {
  auto flags = std::make_shared<RunCommandFlags>();
  CLI::App* command = app.add_subcommand(
      "run", "Train with a program file of `fusor compile -o FILE`");
  command->add_option("FILE", flags->file, "Program file")
      ->required()
      ->type_name("FILE");
  AddProgramRunFlags(*command, flags->train);
  command->add_flag("--recompile", flags->recompile,
                    "Recompile the program for this machine");
  command->callback([flags, command, run] {
    *run = [flags, command] { RunProgramFile(*flags, *command); };
  });
}

}  // namespace fusor::tools
