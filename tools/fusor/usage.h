#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

namespace fusor::tools {

// What is wrong with the arguments, in one line: which command or flag, what
// was expected, what came, and the known name nearest to an unknown one. `app`
// has thrown `error` while parsing.
std::string DescribeUsageError(const CLI::App& app,
                               const CLI::ParseError& error);

// Throws kUsage where a flag of the command that was named, or an argument, was
// given as an empty text: what a script makes of a variable that is not set.
void CheckNoEmptyValue(const CLI::App& app);

// `text` in one line: file names may have line breaks and terminals' escapes.
std::string OneLine(std::string_view text);

}  // namespace fusor::tools
