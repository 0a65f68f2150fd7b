#include "tools/fusor/commands/commands.h"

#include <fmt/core.h>

#include <utility>

#include "ir/support/environment.h"
#include "runtime/distributed/rank_environment.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/flags/recipes.h"

namespace fusor::tools {

namespace {

std::string EnvironmentHelp() {
  std::string text = "Environment:\n";
  for (const EnvironmentVariable& v : EnvironmentVariables()) {
    text += fmt::format("  {:<22} {}\n", v.name, v.doc);
  }
  return text;
}

// Listed only in the help of the program. Commands accept it, too.
void AddVersionFlag(CLI::App& app, std::string_view program) {
  const bool is_command = app.get_parent() != nullptr;
  const bool lists = is_command == (program != "fusor");
  app.set_version_flag("--version", FUSOR_VERSION)
      ->group(lists ? "Options" : "");
  for (CLI::App* command : app.get_subcommands({}))
    AddVersionFlag(*command, program);
}

}  // namespace

void AddCommands(CLI::App& app, std::string_view program, Run* run) {
  app.description(
      "fusor compiles a whole training step - forward, loss, backward, "
      "optimizer - as one graph and runs it.");
  app.require_subcommand(1);
  app.footer(EnvironmentHelp());
  AddTrain(app, run);
  AddEval(app, run);
  AddPredict(app, run);
  AddBench(app, run);
  AddCompile(app, run);
  AddRun(app, run);
  AddExport(app, run);
  AddOpt(app, run);
  AddCompare(app, run);
  AddPlan(app, run);
  AddDump(app, run);
  AddExec(app, run);
  AddData(app, run);
  AddIsolate(app, run);
  AddBisect(app, run);
  AddReport(app, run);
  AddScale(app, run);
  AddLaunch(app, run);
  AddDoctor(app, run);
  AddVersionFlag(app, program);
  TakeLastValues(app);
}

void ParseArguments(CLI::App& app, std::vector<std::string> args) {
  CheckEnvironment();
  args = TranslateRecipe(app, std::move(args), [] {
    return runtime::FindRankEnvironment(LauncherVariable).world_size;
  });
  args = SeparateCommand(app, std::move(args));
  args = SpellWithDashes(app, std::move(args));
  args = WithFlagsVariable(app, std::move(args));
  args = WithChosenSettings(app, std::move(args));
  app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
  CheckValues(app);
}

}  // namespace fusor::tools
