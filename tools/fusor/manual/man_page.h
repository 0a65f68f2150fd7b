#pragma once

#include <string>
#include <vector>

#include "tools/fusor/manual/command_list.h"

namespace fusor::tools {

// Returns the page of a command in man(7)'s macros. `program`: "fusor".
// `commands`: all commands of the program, which the page refers to.
std::string ManPage(const std::string& program, const CommandInfo& command,
                    const std::vector<CommandInfo>& commands);

// Returns the page's name: "fusor", "fusor-data-decode".
std::string ManPageName(const std::string& program, const CommandInfo& command);

}  // namespace fusor::tools
