#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace fusor::tools {

// Flags of NVIDIA's published command lines that have no effect here.
struct IgnoredFlags {
  std::vector<std::string> given;  // "--memory-format nhwc"
  bool synthetic = false;          // --data-backend syntetic (sic)
};
void AddIgnoredFlags(CLI::App& app, IgnoredFlags& flags);

// Returns one line of text; empty if none was given.
std::string IgnoredLine(const IgnoredFlags& flags);

}  // namespace fusor::tools
