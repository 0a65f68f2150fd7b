#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace fusor::tools {

// What is wrong with the arguments, in one line: which command or flag, what
// was expected, what came, and the known name nearest to an unknown one. `app`
// has thrown `error` while parsing.
std::string DescribeUsageError(const CLI::App& app,
                               const CLI::ParseError& error);

// Lets the last value of a flag win if it is given several times, in all
// commands. A list collects the values of all its flags.
void TakeLastValues(CLI::App& app);

// Throws kUsage if a flag or an argument of the command that was named has an
// empty value (a script's unset variable) or a wrong number of values.
void CheckValues(const CLI::App& app);

}  // namespace fusor::tools
