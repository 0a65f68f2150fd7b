// Writes the manual pages and shell completions of fusor and rn50:
//   make_manual DIR
// DIR/man1/PAGE.1, DIR/bash/PROGRAM, DIR/zsh/_PROGRAM, DIR/fish/PROGRAM.fish

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/manual/command_list.h"
#include "tools/fusor/manual/completion.h"
#include "tools/fusor/manual/man_page.h"

namespace fusor::tools {
namespace {

// Returns the commands of a program. rn50 has only the flags of `train`.
std::vector<CommandInfo> CommandsOf(const std::string& program) {
  CLI::App app("", "fusor");
  Run run;
  AddCommands(app, program, &run);
  std::vector<CommandInfo> commands = ListCommands(app);
  if (program == "fusor") return commands;
  const auto train = std::find_if(
      commands.begin(), commands.end(), [](const CommandInfo& command) {
        return command.path == std::vector<std::string>{"train"};
      });
  CommandInfo only = *train;
  only.path.clear();
  only.description = "Train ResNet-50 v1.5: fusor train --arch resnet50-v1.5";
  return {only};
}

void Write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  WriteFileAtomically(file.string(), text, ErrorCode::kUsage);
}

void MakeManual(const std::filesystem::path& folder) {
  for (const std::string program : {"fusor", "rn50"}) {
    const std::vector<CommandInfo> commands = CommandsOf(program);
    for (const CommandInfo& command : commands) {
      Write(folder / "man1" / (ManPageName(program, command) + ".1"),
            ManPage(program, command, commands));
    }
    Write(folder / "bash" / program, BashCompletion(program, commands));
    Write(folder / "zsh" / ("_" + program), ZshCompletion(program, commands));
    Write(folder / "fish" / (program + ".fish"),
          FishCompletion(program, commands));
  }
}

}  // namespace
}  // namespace fusor::tools

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: make_manual DIR\n");
    return 2;
  }
  try {
    fusor::tools::MakeManual(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "make_manual: {}\n", error.what());
    return 1;
  }
}
