#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fusor::runtime {
struct ProgramFile;
}  // namespace fusor::runtime

namespace fusor::tools {

struct TrainFlags;

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

// Parses and checks the arguments and the flags from the environment. Throws
// what CLI11 throws, and Error for checks beyond CLI11's.
void ParseArguments(CLI::App& app, std::vector<std::string> args);

// Runs `fusor train`. With a program file, compiles nothing: runs its programs
// on the number of ranks that they were compiled for. `flags` must then include
// the flags that they were compiled with.
void RunTraining(const TrainFlags& flags,
                 std::optional<runtime::ProgramFile> file);

}  // namespace fusor::tools
