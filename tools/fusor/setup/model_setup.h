#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "codegen/compiler.h"
#include "ir/graph.h"
#include "models/model.h"
#include "tools/fusor/flags/flag_groups.h"

namespace fusor::tools {

// Number of classes if neither flags nor data set it.
inline constexpr int kDefaultClasses = 1000;

bool IsCifar(const ModelFlags& flags);
// Returns --image-size, or the model's default.
int64_t ImageSize(const ModelFlags& flags);

// Returns the model's options. `classes`: of the data; 0: no data.
models::ModelOptions MakeModelOptions(const ModelFlags& flags, int classes);

// A program to compile: a built-in model or a module file.
struct ProgramSource {
  ModelFlags model;
  std::string phase;  // empty: train; eval for a module without output "loss"
};
// Declares the model flags and "--phase train|eval".
void AddProgramSource(CLI::App& app, ProgramSource& source);

struct Program {
  std::unique_ptr<ir::Graph> graph;
  codegen::ProgramKind kind = codegen::ProgramKind::kTrain;
  codegen::GraphStage stage = codegen::GraphStage::kForward;
};
// Opens the program. A module is returned as in its file, at any stage.
// `norm_ranks`: see models::ModelOptions.
Program OpenProgram(const ProgramSource& source, int64_t norm_ranks = 1);

}  // namespace fusor::tools
