#pragma once

#include <nanobind/nanobind.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/fusor/setup/training_run.h"

namespace fusor::python {

// What Python gets during a training run.
struct TrainingCallbacks {
  nanobind::object step;       // called with a StepReport, or None
  nanobind::object evaluated;  // called with epoch and EvalReport, or None
  bool prints = true;          // the lines of `fusor train`, to sys.stdout
};

// A run of `fusor train`, or with a program file of `fusor run`. All functions
// need the GIL.
class Training {
 public:
  // Runs it, without the GIL. `model`: a name, a .pt2 or .onnx file, IR text or
  // protobuf, or a program file. `data`: the data set's path; empty: none.
  // `keywords`: the other flags. Ctrl-C ends the run as it ends the program:
  // after the current step, with its state saved; then throws Python's
  // exception. Throws what TrainingRun throws, and what a callback raises.
  Training(const std::string& model, const std::string& data,
           const nanobind::dict& keywords, TrainingCallbacks callbacks);

  // The keys of --json, as text; "null" if the run had no step.
  std::string Result() const;
  std::vector<std::string> StateNames() const;
  nanobind::dict State();
  void SaveWeights(const std::string& path);

 private:
  tools::TrainingHooks Hooks();
  // Calls Python. Ctrl-C, which a callback raises if it was pressed during the
  // step, ends the run as in Stopped.
  void Call(const std::function<void()>& callback);
  bool Stopped();

  using Stream = std::unique_ptr<FILE, int (*)(FILE*)>;

  TrainingCallbacks callbacks_;
  const Stream text_;
  std::optional<nanobind::python_error> interrupt_;
  std::unique_ptr<tools::TrainingRun> run_;
};

// Returns the flag that selects the model: --arch, or --module for a file of
// IR.
std::string ModelWord(const std::string& model);

// Declares fusor.StepReport, fusor.EvalReport and the run.
void BindTraining(nanobind::module_& module);

}  // namespace fusor::python
