#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/support/environment.h"
#include "ir/support/error.h"
#include "tools/fusor/commands.h"
#include "tools/fusor/flags_variable.h"
#include "tools/fusor/usage.h"

namespace fusor::tools {
namespace {

std::atomic<int> stop_signal{0};

// Of stdin, stdout and stderr, which were terminals when the program began.
std::array<bool, 3> on_terminal;

// Where the terminal is gone, what is printed yet must not end the run before
// it has saved. Calls only what a signal handler may.
void LeaveTerminal() {
  const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd < 3; ++fd) {
    if (on_terminal[fd] && nowhere >= 0) dup2(nowhere, fd);
  }
}

// Signals within this time are one: timeout(1) signals a program and then its
// group, and a terminal the ranks of a launcher that hands the signal on.
constexpr int64_t kOneStopMs = 300;
std::atomic<int64_t> stop_time{0};

// The first signal ends the run after the step in progress, the second at once.
void OnSignal(int signal) {
  if (signal == SIGHUP) LeaveTerminal();
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = time.tv_sec * 1000 + time.tv_nsec / 1'000'000;
  int64_t first = 0;
  if (stop_time.compare_exchange_strong(first, now)) {
    stop_signal = signal;
  } else if (now - first >= kOneStopMs) {
    std::_Exit(128 + signal);
  }
}

std::string EnvironmentHelp() {
  std::string text = "Environment:\n";
  for (const EnvironmentVariable& v : EnvironmentVariables()) {
    text += fmt::format("  {:<22} {}\n", v.name, v.doc);
  }
  return text;
}

// The help of the command that was named. For rn50, which stands for a command
// with options, that command's help under its own name.
std::string Help(const CLI::App& app) {
  if (std::string_view(FUSOR_PROGRAM) == "fusor") return app.help();
  return app.get_formatter()->make_help(
      app.get_subcommands().front(), FUSOR_PROGRAM, CLI::AppFormatMode::Normal);
}

int Fail(std::string_view message, ErrorCode code) {
  // So that in a log of both the line stands after what came before it.
  std::fflush(stdout);
  const std::string line =
      fmt::format(FUSOR_PROGRAM ": {}\n", OneLine(message));
  std::fputs(line.c_str(), stderr);  // which may be closed
  return static_cast<int>(code);
}

// The reason why a result did not get out.
int FailOnStdout() {
  return Fail(fmt::format("cannot write to stdout: {}", std::strerror(errno)),
              ErrorCode::kUsage);
}

int Print(const std::string& text) {
  const bool printed = std::fputs(text.c_str(), stdout) >= 0;
  return printed && std::fflush(stdout) == 0 ? 0 : FailOnStdout();
}

int Fail(const std::exception& error) {
  // Printing into it throws what has no name of the file.
  if (std::ferror(stdout) != 0) return FailOnStdout();
  if (const auto* known = dynamic_cast<const Error*>(&error)) {
    return Fail(known->what(), known->code());
  }
  // Of a path that the system refuses to look up: too long, or in a circle.
  if (const auto* file =
          dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    return Fail(
        fmt::format("{}: {}", file->path1().string(), file->code().message()),
        ErrorCode::kUsage);
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return Fail("not enough memory on this host", ErrorCode::kOutOfMemory);
  }
  return Fail(fmt::format("internal error: {}", error.what()),
              ErrorCode::kInternal);
}

void AddCommands(CLI::App& app, Run* run) {
  app.require_subcommand(1);
  app.footer(EnvironmentHelp());
  app.set_version_flag("--version", FUSOR_VERSION);
  AddTrain(app, run);
  AddEval(app, run);
  AddBench(app, run);
  AddCompile(app, run);
  AddRun(app, run);
  AddOpt(app, run);
  AddCompare(app, run);
  AddPlan(app, run);
  AddDump(app, run);
  AddData(app, run);
  AddIsolate(app, run);
  AddBisect(app, run);
  AddReport(app, run);
  AddScale(app, run);
  AddLaunch(app, run);
  AddDoctor(app, run);
}

// A stream that was closed must not become the next file that is opened: what
// is printed would stand in a checkpoint. Printing to stdout fails as before.
void KeepStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    // Takes the lowest number that is free.
    open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

int Main(std::vector<std::string> args) {
  KeepStandardStreams();
  CLI::App app(
      "fusor compiles a whole training step - forward, loss, backward, "
      "optimizer - as one graph and runs it.",
      "fusor");
  Run run;
  AddCommands(app, &run);
  try {
    args = WithFlagsVariable(app, std::move(args));
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
    CheckNoEmptyValue(app);
  } catch (const CLI::CallForHelp&) {
    return Print(Help(app));
  } catch (const CLI::CallForVersion&) {
    return Print(FUSOR_VERSION "\n");
  } catch (const CLI::ParseError& e) {
    return Fail(DescribeUsageError(app, e) + FlagsVariableNote(),
                ErrorCode::kUsage);
  } catch (const Error& e) {
    return Fail(e.what(), e.code());
  }
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, OnSignal);
  for (int fd = 0; fd < 3; ++fd) on_terminal[fd] = isatty(fd) != 0;
  // nohup has it ignored.
  if (std::signal(SIGHUP, OnSignal) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);
  // A file at its limit is to be an error of that file, as a full disk is.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    run();
  } catch (const std::exception& e) {
    return Fail(e);
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return FailOnStdout();
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
  return fusor::tools::Main(std::move(args));
}
