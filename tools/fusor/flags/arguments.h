#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace fusor::tools {

// Parses and checks the arguments, beginning with the command, and the flags
// from the environment. `app` has the commands. Throws what CLI11 throws, and
// Error for checks beyond CLI11's.
void ParseArguments(CLI::App& app, std::vector<std::string> args);

}  // namespace fusor::tools
