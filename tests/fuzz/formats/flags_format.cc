// The command line.

#include <sstream>
#include <vector>

#include "ir/support/environment.h"
#include "tests/fuzz/formats/format.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/flags/variant_flags.h"

namespace fusor::fuzz {
namespace {

constexpr std::string_view kVariant = "--a=";
constexpr int kParses = 10'000;  // of one CLI::App: lists of it may grow

struct CommandLine {
  CLI::App app{"", "fusor"};
  tools::Run run;
  int parses = 0;
  CommandLine() { tools::AddCommands(app, "fusor", &run); }
};

void Parse(std::vector<std::string> args) {
  static std::unique_ptr<CommandLine> line;
  if (line == nullptr || ++line->parses == kParses) {
    line = std::make_unique<CommandLine>();
  }
  try {
    tools::ParseArguments(line->app, std::move(args));
  } catch (const CLI::CallForHelp&) {
    line->app.help();
  } catch (const CLI::CallForVersion&) {
    // Printed as it is.
  } catch (const CLI::ParseError& error) {
    Require(!tools::DescribeUsageError(line->app, error).empty(),
            "an empty message");
  }
}

// The value of FUSOR_FLAGS in the first line and a word in each other one; or
// --a= and a variant.
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
    // The program shows any message as one line.
    Require(error.code() == ErrorCode::kUsage, error.what());
  }
}

}  // namespace

std::span<const Format> Formats() {
  static constexpr Format kFormats[] = {
      {"flags", ErrorCode::kUsage, ReadFlags}};
  return kFormats;
}

}  // namespace fusor::fuzz
