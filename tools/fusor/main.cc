#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "ir/support/environment.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "tools/fusor/commands.h"

namespace fusor::tools {
namespace {

std::atomic<int> stop_signal{0};

// The first signal ends the run after the step in progress, the second at once.
void OnSignal(int signal) {
  if (stop_signal.exchange(signal) != 0) std::_Exit(128 + signal);
}

std::string EnvironmentHelp() {
  std::string text = "Environment:\n";
  for (const EnvironmentVariable& v : EnvironmentVariables()) {
    text += fmt::format("  {:<22} {}\n", v.name, v.doc);
  }
  return text;
}

// The known flag nearest to an unknown one, over all chosen sub-commands.
std::string Suggestion(const CLI::App& app, const std::string& unknown) {
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands({})) {
    const bool chosen = command->parsed();
    if (!chosen && unknown[0] != '-') known.push_back(command->get_name());
    if (!chosen) continue;
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        known.push_back("--" + name);
      }
    }
    const std::string deeper = Suggestion(*command, unknown);
    if (!deeper.empty()) return deeper;
  }
  return NearestName(unknown, known);
}

int UsageError(const CLI::App& app, const CLI::ParseError& e,
               const std::vector<std::string>& args) {
  std::string message = e.what();
  if (const auto* extras = dynamic_cast<const CLI::ExtrasError*>(&e)) {
    (void)extras;
    for (const std::string& arg : args) {
      if (message.find(arg) == std::string::npos) continue;
      const std::string flag = arg.substr(0, arg.find('='));
      const std::string nearest = Suggestion(app, flag);
      message =
          fmt::format("{}: unknown argument{}", flag,
                      nearest.empty() ? "" : ", did you mean " + nearest + "?");
      break;
    }
  }
  fmt::print(stderr, "fusor: {}\n", message);
  return static_cast<int>(ErrorCode::kUsage);
}

int Main(const std::vector<std::string>& args) {
  CLI::App app(
      "fusor compiles a whole training step - forward, loss, backward, "
      "optimizer - as one graph and runs it.");
  app.require_subcommand(1);
  app.footer(EnvironmentHelp());
  app.set_version_flag("--version", FUSOR_VERSION);
  Run run;
  AddTrain(app, &run);
  AddEval(app, &run);
  AddBench(app, &run);
  AddCompile(app, &run);
  AddOpt(app, &run);
  AddCompare(app, &run);
  AddPlan(app, &run);
  AddDump(app, &run);
  AddData(app, &run);
  AddIsolate(app, &run);
  AddBisect(app, &run);
  AddDoctor(app, &run);
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    return UsageError(app, e, args);
  }
  std::signal(SIGINT, OnSignal);
  std::signal(SIGTERM, OnSignal);
  try {
    run();
  } catch (const Error& e) {
    fmt::print(stderr, "fusor: {}\n", e.what());
    return static_cast<int>(e.code());
  } catch (const std::exception& e) {
    fmt::print(stderr, "fusor: internal error: {}\n", e.what());
    return static_cast<int>(ErrorCode::kInternal);
  }
  return StopSignal() == 0 ? 0 : 128 + StopSignal();
}

}  // namespace

bool StopRequested() { return stop_signal != 0; }
int StopSignal() { return stop_signal; }

}  // namespace fusor::tools

// FUSOR_PREFIX: arguments that the rn50 tool stands for.
int main(int argc, char** argv) {
  std::vector<std::string> args{FUSOR_PREFIX};
  args.insert(args.end(), argv + 1, argv + argc);
  return fusor::tools::Main(args);
}
