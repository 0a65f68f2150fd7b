#pragma once

// Finds the first kernel or library call of a running program that makes NaN or
// infinity of finite operands, and the op inside it: a fusion is interpreted
// again, op by op, on the operands that it had.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ir/interpreter/interpreter.h"
#include "runtime/session.h"

namespace fusor::runtime {

struct NonFinite {
  int64_t run = 0;   // of the program, from 0
  int64_t step = 0;  // of the plan; -1: an input was not finite to begin with
  std::string what;  // "kernel k_relu_1", "conv2d by brgconv", "input images"
  ir::Location location;  // of the step, in the model
  std::string value;      // the first result that is not finite
  int64_t elements = 0;   // that are not
  int64_t of = 0;
  // The first op in the step whose result is not finite though its operands
  // are, by the typed interpreter; empty when it finds none: then the step's
  // code is at fault.
  std::string op;
  std::string op_value;
  ir::Location op_location;
  std::string snapshot;  // folder; empty: none was written

  std::string Describe() const;  // one line
  std::string Finding() const;   // the same without the run
};

struct NumericsOptions {
  // Ends the program with kGraph at the first finding.
  bool fail = false;
  // Where to write NAME/module.txt, the step alone, and
  // NAME/inputs.safetensors, its operands; empty: nowhere.
  std::string snapshot_folder;
  // Called with the first finding of each program.
  std::function<void(const NonFinite&)> report;
};

class NumericsChecker : public StepObserver {
 public:
  explicit NumericsChecker(NumericsOptions options)
      : options_(std::move(options)) {}

  void Before(const Session& session, int program, size_t step) override;
  void After(const Session& session, int program, size_t step) override;

 private:
  struct Program {
    int64_t run = -1;
    bool found = false;
  };
  using Bytes = std::vector<uint8_t>;

  void CheckInputs(const Session& session, int program);
  std::vector<ir::Tensor> Operands(const Session& session, int program,
                                   size_t step) const;
  void Find(const Session& session, int program, size_t step, NonFinite found);
  void Report(NonFinite found, Program& program);
  Program& At(int program);

  NumericsOptions options_;
  std::vector<Program> programs_;
  std::vector<Bytes> saved_;  // operands of the step that is running
};

// Runs the program once more, which changes no more than a step does, and
// returns the finding; empty if there is none.
std::string FindNonFinite(Session& session, int program);

}  // namespace fusor::runtime
