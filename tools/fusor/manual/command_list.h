#pragma once

// The commands and flags of a program as data, from their CLI11 declarations.
// Manual pages and shell completions are generated from it.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace fusor::tools {

// The kind of value that the shell completes for a flag or argument.
enum class ValueKind { kNone, kText, kWords, kFile, kDirectory };

struct FlagInfo {
  std::vector<std::string> names;  // "-b", "--batch-size"; empty: positional
  std::string value;               // "INT=32"; positional: "DATA"
  std::string description;
  ValueKind kind = ValueKind::kNone;  // kNone: a switch
  std::vector<std::string> words;     // known values
  bool closed = false;                // no other values are allowed
  bool list = false;                  // may be given several times
  bool required = false;
};

struct FlagGroup {
  std::string heading;  // "Options"
  std::vector<FlagInfo> flags;
};

struct CommandInfo {
  std::vector<std::string> path;  // "data", "decode"; empty: the program
  std::string description;
  std::vector<FlagGroup> groups;
  std::vector<FlagInfo> positionals;
  std::vector<std::string> commands;  // names of its sub-commands
};

// Returns the program, all commands and their sub-commands, in the order of
// declaration, without hidden flags.
std::vector<CommandInfo> ListCommands(CLI::App& app);

// Returns the flags of all groups.
std::vector<FlagInfo> FlagsOf(const CommandInfo& command);

}  // namespace fusor::tools
