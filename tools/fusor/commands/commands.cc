#include "tools/fusor/commands/commands.h"

#include <fmt/core.h>

#include "ir/support/environment.h"
#include "tools/fusor/flags/parsing.h"

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

}  // namespace fusor::tools
