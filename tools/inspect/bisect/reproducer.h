#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/inspect/bisect/reduce_case.h"

namespace fusor::tools {

// Files that reproduce a bug: module.txt, inputs.safetensors, manifest.json and
// command.sh, which runs `command` in the folder.
struct Reproducer {
  std::string folder;
  std::vector<std::string> command;  // "fusor", "opt", "module.txt", ...
  std::map<std::string, std::string> facts;  // written to the manifest
};

// Throws kUsage if the folder cannot be written.
void WriteReproducer(const Reproducer& reproducer,
                     const codegen::TestCase& test_case);

// Joins the words, quoted for a POSIX shell.
std::string ShellCommand(const std::vector<std::string>& words);

}  // namespace fusor::tools
