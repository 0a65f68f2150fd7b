#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "runtime/backend/backend.h"
#include "runtime/session.h"
#include "tests/testing/interpreted_session.h"

namespace fusor::test {

// Runs training programs of one model side by side on the same state and data:
// compiled, with verification, and interpreted.
class StepParity {
 public:
  using Build = std::function<std::unique_ptr<ir::Graph>()>;

  // `kernel_cache`: a folder that several of them share; empty: none.
  StepParity(runtime::Backend& backend, Build build,
             passes::PassOptions options, std::string kernel_cache = "");

  // Adds a program, kTrain first. Returns its index.
  int AddProgram(codegen::ProgramKind kind);
  // Initialises both sides with the same state.
  void InitializeState(uint64_t seed);
  void WriteState(const std::string& name, const std::vector<float>& values);
  // Sets the input of all programs that have it.
  void Feed(const std::string& name, const ir::Tensor& tensor);
  // Runs both sides.
  void Step(int index);

  // Fails the test if state (except accumulators and cached cast weights) or a
  // floating-point output of the last step differs by more than the tolerance,
  // relative to its largest element.
  void ExpectAgreement(double tolerance);

  runtime::Session& session() { return session_; }
  // Returns the compiled program.
  runtime::Program& program(int index) const {
    return *session_.programs()[index];
  }
  const ir::Tensor& interpreted(const std::string& state) const {
    return interpreted_.Get(state);
  }
  // Returns an output of the last step by name.
  double interpreted_output(const std::string& name) const {
    return outputs_.at(name).data[0];
  }
  double output(const std::string& name);

 private:
  const Build build_;
  const passes::PassOptions options_;
  const std::string kernel_cache_;
  runtime::Session session_;
  InterpretedSession interpreted_{ir::EvalMode::kTyped};
  int last_ = 0;  // index of the program that ran last
  std::map<std::string, ir::Tensor> outputs_;
};

// Returns all state of a session by name, except accumulators and cached cast
// weights.
std::map<std::string, std::vector<float>> AllState(runtime::Session& session);

}  // namespace fusor::test
