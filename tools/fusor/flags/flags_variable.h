#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace fusor::tools {

// Inserts the flags in the environment variable FUSOR_FLAGS, e.g. "--dump-to
// /tmp/d --verify", after the command in `args`. Flags in `args` take
// precedence. Skips flags that only other commands have. Throws kUsage for a
// word that is not a flag of any command.
std::vector<std::string> WithFlagsVariable(const CLI::App& app,
                                           std::vector<std::string> args);

// Returns a note for usage errors with the variable's value; "" if unset.
std::string FlagsVariableNote();

}  // namespace fusor::tools
