#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/str.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/backend_loader.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/arguments.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/output/terminal.h"
#include "tools/fusor/setup/stop_signals.h"

namespace fusor::tools {
namespace {

// The name of this program. The link "rn50" is `fusor train` under its own
// name.
std::string_view program = "fusor";

// Returns the help of the chosen command. The program rn50 has only one command
// and shows that command's help under the name rn50.
std::string Help(const CLI::App& app) {
  if (program == "fusor") return app.help();
  return app.get_formatter()->make_help(app.get_subcommands().front(),
                                        std::string(program),
                                        CLI::AppFormatMode::Normal);
}

int Fail(std::string_view message, ErrorCode code) {
  // Keeps the order of lines in a log with both streams.
  std::fflush(stdout);
  const std::string line = fmt::format("{}: {}\n", program, OneLine(message));
  std::fputs(line.c_str(), stderr);  // stderr may be closed
  return static_cast<int>(code);
}

// Reports why output could not be written.
int FailOnStdout() {
  return Fail(fmt::format("cannot write to stdout: {}", std::strerror(errno)),
              ErrorCode::kUsage);
}

// Exit status of a successful command.
int ExitStatus() { return StopSignal() == 0 ? 0 : 128 + StopSignal(); }

int Print(const std::string& text) {
  const bool printed = std::fputs(text.c_str(), stdout) >= 0;
  return printed && std::fflush(stdout) == 0 ? ExitStatus() : FailOnStdout();
}

std::string VersionText() {
  const std::vector<std::string> backends = runtime::AvailableBackends();
  return fmt::format(
      "{} " FUSOR_VERSION
      "\nbuild: {}\nbackends: {}\nlibraries: fusor doctor\n",
      program, runtime::BuildId(),
      backends.empty() ? "none" : fmt::format("{}", fmt::join(backends, ", ")));
}

int Fail(const std::exception& error) {
  // A failed print throws without the file's name.
  if (std::ferror(stdout) != 0) return FailOnStdout();
  const Error known = ToError(error);
  return Fail(known.what(), known.code());
}

// A closed standard stream's descriptor must not be reused by the next opened
// file, e.g. a checkpoint, which would then receive prints. Printing to stdout
// still fails.
void KeepStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    // open() returns the lowest free descriptor.
    open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

int Main(std::vector<std::string> words) {
  if (!words.empty() && std::filesystem::path(words[0]).filename() == "rn50") {
    program = "rn50";
    words[0] = "train";
  } else if (!words.empty()) {
    words.erase(words.begin());
  }
  KeepStandardStreams();
  ReplaceStandardStreams([] { Stop(SIGPIPE); });
  WatchStopSignals();
  CLI::App app("", "fusor");
  Run run;
  AddCommands(app, program, &run);
  try {
    ParseArguments(app, std::move(words));
  } catch (const CLI::CallForHelp&) {
    return Print(Help(app));
  } catch (const CLI::CallForVersion&) {
    return Print(VersionText());
  } catch (const CLI::ParseError& e) {
    return Fail(DescribeUsageError(app, e) + FlagsVariableNote(),
                ErrorCode::kUsage);
  } catch (const Error& e) {
    return Fail(e.what(), e.code());
  }
  // Report exceeding a file size limit as an error, like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    run();
  } catch (const std::exception& e) {
    return Fail(e);
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return FailOnStdout();
  }
  return ExitStatus();
}

}  // namespace
}  // namespace fusor::tools

int main(int argc, char** argv) {
  return fusor::tools::Main({argv, argv + argc});
}
