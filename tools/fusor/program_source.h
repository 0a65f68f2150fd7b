#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "codegen/compiler.h"
#include "ir/graph.h"
#include "tools/fusor/flags.h"

namespace fusor::tools {

// A program to be compiled: a model by name, or a module in a file.
struct ProgramSource {
  ModelFlags model;
  std::string module;  // file; empty: the model
  std::string phase = "train";
};
// "--arch" and the flags of models, "--module FILE", "--phase train|eval".
void AddProgramSource(CLI::App& app, ProgramSource& source);

struct Program {
  std::unique_ptr<ir::Graph> graph;
  codegen::ProgramKind kind = codegen::ProgramKind::kTrain;
  codegen::GraphStage stage = codegen::GraphStage::kForward;
};
Program OpenProgram(const ProgramSource& source);

}  // namespace fusor::tools
