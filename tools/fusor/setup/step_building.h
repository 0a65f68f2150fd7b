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

// What a step file is made of besides the training program.
struct StepParts {
  ModelFlags model;
  CompileFlags compile;
  PlannedRanks ranks;
  double ema_decay = 0;
  bool accumulates = false;
};

// The file of a training step that has been compiled with `options`: with it
// the programs that evaluate and, where gradients are added up, that do that,
// compiled against its state. `command` tells which options were given. Throws
// what codegen::Compile throws.
runtime::ProgramFile BuildStepFile(const codegen::CompiledProgram& train,
                                   const StepParts& parts,
                                   const codegen::TargetCompiler& compiler,
                                   const codegen::CompileOptions& options,
                                   const CLI::App& command);

}  // namespace fusor::tools
