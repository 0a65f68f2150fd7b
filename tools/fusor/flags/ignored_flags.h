#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace fusor::tools {

// Flags of the published command lines that have no meaning here.
struct IgnoredFlags {
  std::vector<std::string> given;  // "--memory-format nhwc"
  bool synthetic = false;          // --data-backend syntetic, as it is spelt
};
void AddIgnoredFlags(CLI::App& app, IgnoredFlags& flags);

// One line for people; empty when none was given.
std::string IgnoredLine(const IgnoredFlags& flags);

}  // namespace fusor::tools
