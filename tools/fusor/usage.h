#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace fusor::tools {

// What is wrong with the arguments, in one line: which command or flag, what
// was expected, what came, and the known name nearest to an unknown one. `app`
// has thrown `error` while parsing.
std::string DescribeUsageError(const CLI::App& app,
                               const CLI::ParseError& error);

}  // namespace fusor::tools
