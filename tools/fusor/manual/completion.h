#pragma once

// Scripts that make shells complete commands, flags and their values.

#include <string>
#include <vector>

#include "tools/fusor/manual/command_list.h"

namespace fusor::tools {

// `program`: the name to complete for. `commands`: ListCommands; the first is
// the program itself.
std::string BashCompletion(const std::string& program,
                           const std::vector<CommandInfo>& commands);
std::string ZshCompletion(const std::string& program,
                          const std::vector<CommandInfo>& commands);
std::string FishCompletion(const std::string& program,
                           const std::vector<CommandInfo>& commands);

}  // namespace fusor::tools
