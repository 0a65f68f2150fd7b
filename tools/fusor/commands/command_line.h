#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tools/fusor/commands/commands.h"

namespace fusor::tools {

// Declares all commands. `program`: "fusor", or "rn50", whose help is that of
// one command.
void AddCommands(CLI::App& app, std::string_view program, Run* run);

// Parses and checks the arguments and the flags from the environment. Throws
// what CLI11 throws, and Error for checks beyond CLI11's.
void ParseArguments(CLI::App& app, std::vector<std::string> args);

}  // namespace fusor::tools
