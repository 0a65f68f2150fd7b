// Fuzzes the command line.

#include <fmt/format.h>

#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "ir/support/environment.h"
#include "tests/fuzz/formats/format.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/arguments.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/flags/variant_flags.h"

namespace fusor::fuzz {
namespace {

constexpr std::string_view kVariant = "--a=";
constexpr int kParses = 10'000;  // per CLI::App, whose lists may grow

// All commands or one of them. CLI11 visits all flags of all commands for each
// command line.
struct CommandLine {
  CLI::App app{"", "fusor"};
  tools::Run run;
  int parses = 0;

  explicit CommandLine(std::string_view only) {
    tools::AddCommands(app, "fusor", &run);
    if (!Has(only)) return;
    for (CLI::App* command : app.get_subcommands({})) {
      if (command->get_name() != only) app.remove_subcommand(command);
    }
  }

  bool Has(std::string_view command) const {
    return !app.get_subcommands(
                   [&](const CLI::App* a) { return a->get_name() == command; })
                .empty();
  }
};

// Returns the command line for `command`, or for all commands if there is none
// of that name.
CommandLine& CommandLineOf(const std::string& command) {
  static std::map<std::string, std::unique_ptr<CommandLine>> lines;
  static const CommandLine all("");
  std::unique_ptr<CommandLine>& line = lines[all.Has(command) ? command : ""];
  if (line == nullptr || ++line->parses == kParses) {
    line = std::make_unique<CommandLine>(command);
  }
  return *line;
}

void Parse(std::vector<std::string> args) {
  CommandLine* line = &CommandLineOf(args.empty() ? "" : args.front());
  try {
    tools::ParseArguments(line->app, std::move(args));
  } catch (const CLI::CallForHelp&) {
    line->app.help();
  } catch (const CLI::CallForVersion&) {
    // Printed unchanged.
  } catch (const CLI::ParseError& error) {
    Require(!tools::DescribeUsageError(line->app, error).empty(),
            "an empty message");
  }
}

// The first line is the value of FUSOR_FLAGS, each other line a word.
// Alternatively, the text is --a= and a variant.
void ReadFlags(std::string_view bytes) {
  const std::string text(bytes);
  try {
    if (bytes.starts_with(kVariant)) {
      static const tools::VariantFlags kShared;
      tools::ParseVariant("--a", text.substr(kVariant.size()), kShared);
      return;
    }
    std::istringstream stream(text);
    std::string line;
    std::getline(stream, line);
    setenv("FUSOR_FLAGS", line.c_str(), /*overwrite=*/1);
    std::vector<std::string> args;
    while (std::getline(stream, line)) args.push_back(line);
    Parse(std::move(args));
  } catch (const Error& error) {
    // The program shows every message as one line.
    Require(error.code() == ErrorCode::kUsage,
            fmt::format("expected code {}, got code {}: {}",
                        static_cast<int>(ErrorCode::kUsage),
                        static_cast<int>(error.code()), error.what()));
  }
}

}  // namespace

std::span<const Format> Formats() {
  static constexpr Format kFormats[] = {
      {"flags", ErrorCode::kUsage, ReadFlags}};
  return kFormats;
}

}  // namespace fusor::fuzz
