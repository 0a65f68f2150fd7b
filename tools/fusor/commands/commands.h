#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fusor::tools {

// Each function declares a sub-command. Parsing that sub-command sets `*run` to
// its implementation, which throws fusor::Error on failure.
using Run = std::function<void()>;
void AddTrain(CLI::App& app, Run* run);
void AddBench(CLI::App& app, Run* run);
void AddCompare(CLI::App& app, Run* run);
void AddPlan(CLI::App& app, Run* run);
void AddBisect(CLI::App& app, Run* run);
void AddIsolate(CLI::App& app, Run* run);
void AddEval(CLI::App& app, Run* run);
void AddPredict(CLI::App& app, Run* run);
void AddCompile(CLI::App& app, Run* run);
void AddRun(CLI::App& app, Run* run);
void AddOpt(CLI::App& app, Run* run);
void AddDump(CLI::App& app, Run* run);
void AddExec(CLI::App& app, Run* run);
void AddExport(CLI::App& app, Run* run);
void AddData(CLI::App& app, Run* run);
void AddReport(CLI::App& app, Run* run);
void AddScale(CLI::App& app, Run* run);
void AddLaunch(CLI::App& app, Run* run);
void AddDoctor(CLI::App& app, Run* run);

// Declares all commands. `program`: "fusor", or "rn50", whose help is that of
// one command.
void AddCommands(CLI::App& app, std::string_view program, Run* run);

}  // namespace fusor::tools
