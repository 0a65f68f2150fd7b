#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace fusor::tools {

// The arguments with the flags of the environment variable FUSOR_FLAGS,
// "--dump-to /tmp/d --verify", after the command that they name. A flag that
// the arguments give themselves is theirs; one that is of other commands only
// is passed over. Throws kUsage for a word that is no flag of any command.
std::vector<std::string> WithFlagsVariable(const CLI::App& app,
                                           std::vector<std::string> args);

// To be added to a message about wrong flags: empty, or a hint that some of
// them came by the variable.
std::string FlagsVariableNote();

}  // namespace fusor::tools
