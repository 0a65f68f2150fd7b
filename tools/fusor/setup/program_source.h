#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "codegen/compiler.h"
#include "ir/graph.h"
#include "tools/fusor/flags/flag_groups.h"

namespace fusor::tools {

// A program to be compiled: a model by name, or a module in a file.
struct ProgramSource {
  ModelFlags model;
  std::string phase;  // empty: train, of a module without output "loss" eval
};
// The flags of models, "--phase train|eval".
void AddProgramSource(CLI::App& app, ProgramSource& source);

struct Program {
  std::unique_ptr<ir::Graph> graph;
  codegen::ProgramKind kind = codegen::ProgramKind::kTrain;
  codegen::GraphStage stage = codegen::GraphStage::kForward;
};
// A module comes as it is in its file, whatever its stage. `norm_ranks`: see
// models::ModelOptions.
Program OpenProgram(const ProgramSource& source, int64_t norm_ranks = 1);

}  // namespace fusor::tools
