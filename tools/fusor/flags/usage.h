#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace fusor::tools {

// Describes a usage error in one line: command or flag, expected and actual
// value, and the closest known name for an unknown one. `error`: what `app`
// threw while parsing.
std::string DescribeUsageError(const CLI::App& app,
                               const CLI::ParseError& error);

// Makes the last value of a repeated flag take precedence, in all commands.
// Lists collect all values.
void TakeLastValues(CLI::App& app);

// Throws kUsage if an argument of the chosen command has an empty value (e.g.
// an unset shell variable) or a wrong number of values.
void CheckValues(const CLI::App& app);

}  // namespace fusor::tools
