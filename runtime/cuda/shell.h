#pragma once

#include <string>

namespace fusor::cuda {

// What a shell command prints; empty where it fails.
std::string ShellOutput(const std::string& command);

}  // namespace fusor::cuda
