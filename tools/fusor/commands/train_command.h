#pragma once

#include <optional>

#include "runtime/program_file.h"
#include "tools/fusor/flags/train_flags.h"

namespace fusor::tools {

// `fusor train`; with a step file nothing is compiled: its programs are run, on
// as many ranks, with the flags that they were compiled with among `flags`.
void RunTraining(const TrainFlags& flags,
                 std::optional<runtime::ProgramFile> file);

}  // namespace fusor::tools
