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

// Training programs of one model, compiled and interpreted side by side on the
// same state and data. The compiled ones are verified.
class StepParity {
 public:
  using Build = std::function<std::unique_ptr<ir::Graph>()>;

  StepParity(runtime::Backend& backend, Build build,
             passes::PassOptions options);

  // kTrain first. Returns the program's index.
  int AddProgram(codegen::ProgramKind kind);
  // The same state for both.
  void InitializeState(uint64_t seed);
  void WriteState(const std::string& name, const std::vector<float>& values);
  // For all programs that have such an input.
  void Feed(const std::string& name, const ir::Tensor& tensor);
  // Runs both.
  void Step(int index);

  // Fails the test where state, but for accumulators and weight copies, or a
  // floating-point output of the last step differs by more than the tolerance,
  // relative to its greatest element.
  void ExpectAgreement(double tolerance);

  runtime::Session& session() { return session_; }
  // The compiled program.
  runtime::Program& program(int index) const {
    return *session_.programs()[index];
  }
  const ir::Tensor& interpreted(const std::string& state) const {
    return interpreted_.Get(state);
  }
  // Of the last step, by name.
  double interpreted_output(const std::string& name) const {
    return outputs_.at(name).data[0];
  }
  double output(const std::string& name);

 private:
  const Build build_;
  const passes::PassOptions options_;
  runtime::Session session_;
  InterpretedSession interpreted_{ir::EvalMode::kTyped};
  int last_ = 0;  // program that ran last
  std::map<std::string, ir::Tensor> outputs_;
};

// All state of a session, by name, but accumulators and copies of weights.
std::map<std::string, std::vector<float>> AllState(runtime::Session& session);

}  // namespace fusor::test
