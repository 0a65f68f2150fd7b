#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/batch_source.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "runtime/train/lr_schedule.h"
#include "runtime/train/mixup.h"
#include "runtime/train/overflow_monitor.h"

namespace fusor::runtime {

// Position of a run between two steps.
struct TrainPosition {
  int64_t step = 0;             // steps done
  bool evaluation_due = false;  // an evaluation after these steps is pending
  double best_top1 = 0;         // in [0, 1]
  uint64_t loss_hash = 0;       // hash of all losses so far; 0: none
};

struct TrainOptions {
  int64_t epochs = 1;
  int64_t iterations = -1;  // stop after this many steps in total; -1: no limit
  int64_t run_steps = -1;   // stop after this many in this run; -1: no limit
  int64_t print_every = 10;
  TrainPosition start;  // position of a resumed run
  // Steps between calls of TrainObserver::save; 0: after each epoch.
  int64_t save_every = 0;
  // Stop when an evaluation reaches this top-1 accuracy, in [0, 1].
  double stop_at_top1 = 2;
  int64_t eval_every = 1;  // epochs between evaluations; 0: never
  LrScheduleOptions lr;
  uint64_t seed = 0;  // seed of dropout and mixup
  MixOptions mix;     // if the program has the inputs
  // Micro-batches per update. All except the last run program `accumulate`
  // (ProgramKind::kAccumulate). A step is one update; the last step of an epoch
  // uses the remaining batches.
  int64_t micro_batches = 1;
  Program* accumulate = nullptr;
  // Number of steps in a group. A group is enqueued at once, as one graph if
  // the device can capture it. An epoch, a save and, with a dynamic loss scale,
  // an interval report end a group early. Steps that do not fill a group, and
  // all steps of an observed session, are enqueued one by one. REQUIRES: 1 if
  // micro_batches > 1.
  int64_t graph_steps = 1;
  // Limit on consecutive updates skipped for overflow; 0: no limit.
  int64_t overflow_limit = 50;
};

struct StepReport {
  int64_t step = 0;  // from 1
  int64_t epoch = 0;
  double loss = 0;
  double lr = 0;
  double seconds = 0;  // data loading included
  double data_wait_seconds = 0;
};

// Report on the steps since the previous interval.
struct IntervalReport {
  int64_t steps = 0;
  int64_t epoch = 0;
  int64_t iteration = 0;   // of the last step, from 1
  int64_t iterations = 0;  // in the whole run
  double seconds = 0;
  double loss = 0;  // of the last step
  double images_per_second = 0;
  double lr = 0;
  double data_wait_share = 0;  // share of the interval's time
  DataStats data;              // of the interval
  // Dynamic loss scale: current value, and updates skipped in the interval.
  std::optional<OverflowMonitor::Reading> overflow;
};

struct EvalReport {
  int64_t images = 0;  // or samples of tensors
  // Means over the images or, if each sample has several, over the labels that
  // count.
  double loss = 0;
  double top1 = 0;  // in [0, 1]; NaN if targets are values
  double top5 = 0;

  bool HasAccuracy() const { return !std::isnan(top1); }
};

// Returns the outputs "top1" and "top5" of an evaluation program, which lacks
// them if its targets are values, and "counted", the number of labels that
// count, if each sample has several.
std::vector<int> AccuracyOutputs(const Program& program);

// Sums over the batches of an evaluation.
struct EvalSums {
  double samples = 0;
  double loss = 0;                  // output "loss_sum"
  std::array<double, 3> outputs{};  // AccuracyOutputs
};
// Returns the means over the sums of all ranks. Throws kData if no sample or no
// label counts.
EvalReport MeanOverRanks(Session& session, const Program& program,
                         const EvalSums& sums);

struct TrainReport {
  int64_t steps = 0;  // of this run; excludes those before its start
  double first_loss = 0;
  double last_loss = 0;
  TrainPosition end;
  double images_per_second = 0;  // over all steps except the first
  double seconds = 0;            // time in steps, data loading included
  std::vector<double> step_ms;
  std::vector<double> losses;
  DataStats data;
  // Dynamic loss scale: final value, and all skipped updates.
  std::optional<OverflowMonitor::Reading> overflow;
  bool interrupted = false;
  bool reached_top1 = false;  // TrainOptions::stop_at_top1 was reached
};

// Callbacks of the loop; any may be empty.
struct TrainObserver {
  std::function<void(const StepReport&)> step;
  std::function<void(const IntervalReport&)> interval;
  std::function<void(int64_t step, int64_t steps)> progress;
  std::function<void(int64_t epoch, const EvalReport&)> evaluated;
  std::function<void(const std::string&)> warning;
  // Called to save the state: see save_every. Also called when the run ends
  // normally or by request, if needed. Runs after the evaluation of that step.
  std::function<void(const TrainPosition&)> save;
  // Names the value that ends the run after too many skipped updates.
  OverflowMonitor::Diagnosis diagnosis;
  // Polled before each step; true stops the run.
  std::function<bool()> stop;
};

// Returns the steps per epoch for this many batches per epoch.
int64_t UpdatesPerEpoch(int64_t batches, int64_t micro_batches);

// With several ranks, each has its own part of the data, and every rank must
// call the same functions. Losses and evaluations cover all ranks' images;
// throughput is the total. A stop request on one rank stops all.

// Trains `program` on the source's batches; the source must start at
// options.start. Evaluates with `evaluate` after every eval_every-th epoch and
// after the last step. An evaluation without a result is not reported.
//
// On an asynchronous device (Device::is_asynchronous), a step is reported after
// the next step has been enqueued; with several ranks, after the next two. With
// graph_steps > 1 this applies to groups. All steps are reported before an
// evaluation or a save.
TrainReport Train(Session& session, Program& program, BatchSource& source,
                  const TrainOptions& options, const TrainObserver& observer,
                  const std::function<std::optional<EvalReport>()>& evaluate);

struct EvaluateOptions {
  // The parameters to evaluate; see passes::ReadAverages for averages.
  ParameterView view = ParameterView::kCurrent;
  // Polled before each batch; if true, the evaluation ends without a result.
  // Ignored with several ranks.
  std::function<bool()> stop{};
  // Called after each batch with the number done and the total.
  std::function<void(int64_t done, int64_t batches)> progress{};
  // Called after each batch, while the program still holds its outputs.
  std::function<void(const Batch&)> done{};
};

// Evaluates one epoch of the source; every image counts once, whatever the
// batch size. All ranks use rank 0's running statistics. Parameters are current
// afterwards. Throws kData for an empty source.
std::optional<EvalReport> Evaluate(Session& session, Program& program,
                                   BatchSource& source,
                                   const EvaluateOptions& options = {});

}  // namespace fusor::runtime
