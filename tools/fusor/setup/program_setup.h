#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "runtime/program_file.h"
#include "tools/fusor/flags/train_flags.h"

namespace fusor::tools {

// Declares the flags of a run of a program file: those of `fusor train` that do
// not affect compilation.
void AddProgramRunFlags(CLI::App& app, TrainFlags& flags);

// Returns the flags of `fusor train` with the options of the file, read from
// `path`, followed by `words`, which flags of AddProgramRunFlags gave. Throws
// kUsage if the file's first program does not train.
TrainFlags ProgramFlags(const runtime::ProgramFile& file,
                        const std::string& path,
                        const std::vector<std::string>& words);

// Sets what the file determines of a run on this machine. Throws kDevice if its
// step cannot run here.
void UseProgram(const runtime::ProgramFile& file, const std::string& path,
                TrainFlags& flags);

}  // namespace fusor::tools
