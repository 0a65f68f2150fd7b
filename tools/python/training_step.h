#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "ir/graph.h"
#include "runtime/program.h"
#include "runtime/program_file.h"
#include "runtime/session.h"
#include "runtime/train/training_loop.h"
#include "tools/fusor/setup/rank_run.h"
#include "tools/python/host_array.h"
#include "tools/python/model.h"
#include "tools/python/options.h"

namespace fusor::python {

// Throws kUsage in a process that was forked after fusor had started its
// threads, which the child lacks. Call before any work on a backend.
void CheckProcess();

// Throws Python's exception if Ctrl-C was pressed, and otherwise returns false.
// For code that runs without the GIL.
bool ThrowOnKeyboardInterrupt();
// Returns an observer that ends a compilation by the above, after a pass.
codegen::CompileObserver StopOnKeyboardInterrupt();

// The text of a report: for a terminal, as an HTML page, as JSON.
struct ReportTexts {
  std::string text, html, json;
};

// A compiled training step with its state: what fusor.compile returns. All
// functions need the GIL and release it while they compile or run. They throw
// kUsage while another thread is in one of them, and in a forked process.
class TrainingStep {
 public:
  // Compiles the model and initialises its state: from the archive's weights,
  // the rest from the seed. Throws what FitModel, Build and Session throw.
  // With `ranks`, the step is one of all ranks that a launcher has started;
  // then all ranks call the same functions.
  TrainingStep(Model model, std::vector<HostArray> example, Options options,
               bool ranks);
  // Loads a program file of SaveProgram or `fusor compile` and initialises its
  // state from the seed. Throws kDevice if the file is not of this kind of
  // machine, and kUsage if its step is of several ranks or micro-batches.
  explicit TrainingStep(const std::string& program_file);

  int rank() const { return ranks_ == nullptr ? 0 : ranks_->rank(); }
  int world_size() const {
    return ranks_ == nullptr ? 1 : ranks_->world_size();
  }
  // Tells the other ranks that this one ends. Only the destructor may follow.
  void Leave();

  const std::string& model_name() const { return model_.name; }
  std::string device() const;
  // Names and types of the data inputs, in order.
  const std::vector<std::pair<std::string, ir::TensorType>>& inputs() const {
    return inputs_;
  }
  // Training steps done.
  int64_t steps() const { return steps_; }
  double lr() const { return lr_; }
  void set_lr(double lr);

  // Runs one training step on a batch, one array per data input in order, and
  // returns its loss. Throws kUsage for arrays that do not fit; nothing runs
  // then.
  double Run(std::vector<HostArray> batch);
  // Returns an output of the last step.
  nanobind::ndarray<nanobind::numpy, float> Output(const std::string& name);

  // Evaluates a batch of at most the compiled size with the present weights;
  // compiles the evaluation program when first called. The arrays are those of
  // Run. Throws kGraph for a graph, which has no form for evaluation.
  runtime::EvalReport Evaluate(std::vector<HostArray> batch);
  // Returns the logits of a batch, [N, C] or [N, C, ..]; otherwise as Evaluate,
  // but without the target.
  nanobind::ndarray<nanobind::numpy, float> Predict(
      std::vector<HostArray> inputs);

  // Evaluates a whole data set. `keywords`: how it is read, as for `fusor
  // eval`. Throws kUsage if the step takes float32 images of a classifier, and
  // what reading throws.
  runtime::EvalReport EvaluateData(const std::string& data,
                                   const nanobind::dict& keywords);

  // Parameters and running statistics by name.
  std::vector<std::string> StateNames() const;
  nanobind::dict State();
  // Sets parameters and running statistics. With `strict`, throws kCheckpoint
  // unless the names are those of StateNames, except for num_batches_tracked.
  void LoadState(std::vector<HostArray> arrays, bool strict);
  void SaveWeights(const std::string& path);
  void LoadWeights(const std::string& path);
  // Writes all state, including the optimizer's, and the number of steps to a
  // new checkpoint in the folder, and returns the checkpoint's path. Keeps the
  // `keep` newest ones; 0 keeps all. Throws kCheckpoint, kUsage if another run
  // saves there.
  std::string SaveCheckpoint(const std::string& folder, int keep);
  // Restores what SaveCheckpoint wrote: from a checkpoint, or from the newest
  // intact one in a folder. Throws kCheckpoint, with nothing changed, if there
  // is none, or if it is of another model, optimizer or seed.
  void LoadCheckpoint(const std::string& path);

  // Writes the compiled step, and its evaluation if the model has one, to a
  // program file, without the state. Throws kUsage.
  void SaveProgram(const std::string& path);

  // Reports the compiled step; times are estimates.
  ReportTexts Report(int64_t top);

 private:
  class Use;

  // Finds the ranks. Only rank 0 dumps and warns.
  void FindRanks();
  // Connects the ranks and sets the options for them.
  void JoinRanks();
  // Returns the sum over ranks.
  std::vector<double> Total(std::vector<double> own);
  // Calls `work` on rank 0. Returns its result on all ranks, or throws its
  // error.
  std::string OnFirst(const std::function<std::string()>& work);
  void Compile();
  void Load(const runtime::ProgramFile& file, const std::string& path,
            const tools::CompileFlags& flags);
  void CompileEvaluation();
  void FindInputs();
  void Feed(runtime::Program& program, const std::string& name,
            const HostArray& array);
  template <typename T>
  void FeedScalar(runtime::Program& program, const char* name, T value);
  // Converts an array for a data input. Throws kUsage if it does not fit, and
  // kData for tokens and labels of several points out of range.
  void Convert(HostArray& array, const std::string& name,
               const ir::TensorType& type, bool part = false) const;
  // Copies the arrays to the evaluation program and runs it. A target may be
  // missing. Returns the number of samples.
  int64_t RunEvaluation(std::vector<HostArray>& batch, bool with_target);

  Model model_;
  Options options_;
  codegen::CompileOptions compile_;
  std::unique_ptr<tools::RankRun> ranks_;  // null for a step of one rank
  int64_t shared_ = 0;                     // calls of OnFirst
  std::unique_ptr<runtime::Session> session_;
  runtime::Program* train_ = nullptr;
  runtime::Program* eval_ = nullptr;  // null until needed
  int loss_ = 0;                      // output of train_
  std::vector<std::pair<std::string, ir::TensorType>> inputs_;
  double lr_ = 0;
  int64_t steps_ = 0;
  std::atomic<bool> busy_ = false;
};

}  // namespace fusor::python
