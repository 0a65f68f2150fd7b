#pragma once

#include <optional>

#include "runtime/program_file.h"
#include "tools/fusor/flags/train_flags.h"

namespace fusor::tools {

// Runs `fusor train`. With a program file, compiles nothing: runs its programs
// on the number of ranks that they were compiled for. `flags` must then include
// the flags that they were compiled with.
void RunTraining(const TrainFlags& flags,
                 std::optional<runtime::ProgramFile> file);

}  // namespace fusor::tools
