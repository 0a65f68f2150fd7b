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

// runtime::Session by the interpreter: training programs over one state store,
// differentiated and updated by the passes, otherwise as they were built.
class InterpretedSession {
 public:
  explicit InterpretedSession(ir::EvalMode mode) : mode_(mode) {}

  // From a forward graph. Returns the program's number.
  int AddProgram(std::unique_ptr<ir::Graph> forward, codegen::ProgramKind kind,
                 passes::PassOptions options);

  // State of all programs, as Session::InitializeState has it.
  void InitializeState(uint64_t seed);
  // State, data or a hyper-parameter, by the input's name.
  void Set(const std::string& name, ir::Tensor tensor);
  const ir::Tensor& Get(const std::string& name) const;
  const ir::Graph& graph(int program) const { return *graphs_[program]; }

  // Runs the program; state takes its next values. The other outputs.
  std::map<std::string, ir::Tensor> Step(int program);

 private:
  const ir::EvalMode mode_;
  std::vector<std::unique_ptr<ir::Graph>> graphs_;
  std::map<std::string, ir::Tensor> values_;  // of inputs
};

}  // namespace fusor::test
