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

// Parses the arguments, and those of the environment, and checks their values.
// Throws what CLI11 throws, and Error for what it does not check.
void ParseArguments(CLI::App& app, std::vector<std::string> args);

}  // namespace fusor::tools
