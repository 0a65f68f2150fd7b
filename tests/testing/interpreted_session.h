#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "ir/interpreter/interpreter.h"
#include "passes/passes.h"

namespace fusor::test {

// A reference for runtime::Session that uses the interpreter: training programs
// share one state store. Runs only the passes of the forward and training
// stages, such as autodiff and the optimizer update.
class InterpretedSession {
 public:
  explicit InterpretedSession(ir::EvalMode mode) : mode_(mode) {}

  // Adds a program with this forward graph. Returns its index.
  int AddProgram(std::unique_ptr<ir::Graph> forward, codegen::ProgramKind kind,
                 passes::PassOptions options);

  // Initialises the state of all programs like Session::InitializeState.
  void InitializeState(uint64_t seed);
  // Sets an input by name: state, data or a hyper-parameter.
  void Set(const std::string& name, ir::Tensor tensor);
  const ir::Tensor& Get(const std::string& name) const;
  const ir::Graph& graph(int program) const { return *graphs_[program]; }

  // Runs the program and updates the state. Returns the other outputs.
  std::map<std::string, ir::Tensor> Step(int program);

 private:
  const ir::EvalMode mode_;
  std::vector<std::unique_ptr<ir::Graph>> graphs_;
  std::map<std::string, ir::Tensor> values_;  // by input
};

}  // namespace fusor::test
