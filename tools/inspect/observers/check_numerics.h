#pragma once

// Finds the first kernel or library call of a running program that produces NaN
// or infinity from finite operands, and the op inside it. For this, a fusion is
// interpreted op by op on its actual operands.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ir/interpreter/interpreter.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/step_observer.h"

namespace fusor::inspect {

struct NonFinite {
  int64_t run = 0;   // number of the program's run, from 0
  int64_t step = 0;  // index in the plan; -1: an input was not finite
  std::string what;  // "kernel k_relu_1", "conv2d by brgconv", "input images"
  ir::Location location;  // model location of the step
  std::string value;      // name of the first non-finite result
  int64_t elements = 0;   // number of non-finite elements
  int64_t of = 0;
  // The first op in the step with a non-finite result and finite operands,
  // according to the typed interpreter. Empty if there is none; then the step's
  // generated code is wrong.
  std::string op;
  std::string op_value;
  ir::Location op_location;
  std::string snapshot;  // folder; empty: not written

  std::string Describe() const;  // one line
  std::string Finding() const;   // as Describe, without the run
};

struct NumericsOptions {
  // Throw kGraph at the first finding.
  bool fail = false;
  // Folder for NAME/module.txt, the step as a graph, and
  // NAME/inputs.safetensors, its operands. Empty: none.
  std::string snapshot_folder;
  // Called with the first finding per program.
  std::function<void(const NonFinite&)> report;
};

class NumericsChecker : public runtime::StepObserver {
 public:
  explicit NumericsChecker(NumericsOptions options)
      : options_(std::move(options)) {}

  void Before(const runtime::Program& program, size_t step) override;
  void After(const runtime::Program& program, size_t step) override;

 private:
  struct Runs {
    int64_t run = -1;
    bool found = false;
  };
  using Bytes = std::vector<uint8_t>;

  void CheckInputs(const runtime::Program& program);
  std::vector<ir::Tensor> Operands(const runtime::Program& program,
                                   size_t step) const;
  void Find(const runtime::Program& program, size_t step, NonFinite found);
  void Report(NonFinite found, Runs& runs);

  NumericsOptions options_;
  std::map<const runtime::Program*, Runs> runs_;
  std::vector<Bytes> saved_;  // operands that the current step overwrites
};

// Runs the program once more and returns the finding; empty if there is none.
// Changes state as any step does.
std::string FindNonFinite(runtime::Session& session, runtime::Program& program);

}  // namespace fusor::inspect
