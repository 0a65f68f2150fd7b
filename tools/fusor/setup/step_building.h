#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "codegen/target_compiler.h"
#include "runtime/program_file.h"
#include "tools/fusor/flags/flag_groups.h"
#include "tools/fusor/setup/rank_options.h"

namespace fusor::tools {

// What a program file contains besides the training program.
struct StepParts {
  ModelFlags model;
  CompileFlags compile;
  PlannedRanks ranks;
  double ema_decay = 0;
  bool accumulates = false;
};

// Builds the file of a training step that was compiled with `options`. Adds the
// evaluation program and, for gradient accumulation, the accumulation program,
// compiled against its state. `command`: provides the given options. Throws
// what codegen::Compile throws.
runtime::ProgramFile BuildProgramFile(const codegen::CompiledProgram& train,
                                      const StepParts& parts,
                                      const codegen::TargetCompiler& compiler,
                                      const codegen::CompileOptions& options,
                                      const CLI::App& command);

}  // namespace fusor::tools
