#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/batch_source.h"
#include "runtime/session.h"
#include "runtime/train/lr_schedule.h"
#include "runtime/train/overflow_monitor.h"

namespace fusor::runtime {

// Where a run stands between two steps.
struct TrainPosition {
  int64_t step = 0;             // steps done
  bool evaluation_due = false;  // after them, and not done
  double best_top1 = 0;         // in [0, 1]
  uint64_t loss_hash = 0;       // of all losses so far, 0: none
};

struct TrainOptions {
  int64_t epochs = 1;
  int64_t iterations = -1;  // stop after so many steps in all; -1: no limit
  int64_t run_steps = -1;   // stop after so many of this run; -1: no limit
  int64_t print_every = 10;
  TrainPosition start;  // of a run that is resumed
  // Steps between two calls of TrainObserver::save; 0: after each epoch.
  int64_t save_every = 0;
  double stop_at_top1 = 2;  // end once an evaluation reaches it, in [0, 1]
  int64_t eval_every = 1;   // epochs; 0: never
  LrScheduleOptions lr;
  uint64_t seed = 0;  // of dropout and mixup
  double mixup = 0;   // alpha; of a program that has the input
  // Batches of one update, all but the last of them through program
  // `accumulate` (ProgramKind::kAccumulate). A step is an update; the last one
  // of an epoch has what batches are left.
  int64_t micro_batches = 1;
  int accumulate = -1;
  // Updates in a row that overflow may skip; 0: any number.
  int64_t overflow_limit = 50;
};

struct StepReport {
  int64_t step = 0;  // from 1
  int64_t epoch = 0;
  double loss = 0;
  double lr = 0;
  double seconds = 0;  // data included
  double data_wait_seconds = 0;
};

// One line of the log: the steps since the one before.
struct IntervalReport {
  int64_t steps = 0;
  int64_t epoch = 0;
  int64_t iteration = 0;   // of the last step, from 1
  int64_t iterations = 0;  // in the whole run
  double seconds = 0;
  double loss = 0;  // of the last step
  double images_per_second = 0;
  double lr = 0;
  double data_wait_share = 0;  // of the interval's time
  DataStats data;              // of the interval
  // With a dynamic loss scale: now, and updates skipped in the interval.
  std::optional<OverflowMonitor::Reading> overflow;
};

struct EvalReport {
  int64_t images = 0;
  double loss = 0;
  double top1 = 0;  // in [0, 1]
  double top5 = 0;
};

struct TrainReport {
  int64_t steps = 0;  // of this run: without those before its start
  double first_loss = 0;
  double last_loss = 0;
  TrainPosition end;
  double images_per_second = 0;  // over all steps but the first
  double seconds = 0;            // in steps, data included
  std::vector<double> step_ms;
  std::vector<double> losses;
  DataStats data;
  // With a dynamic loss scale: at the end, and updates skipped in all.
  std::optional<OverflowMonitor::Reading> overflow;
  bool interrupted = false;
  bool reached_top1 = false;  // TrainOptions::stop_at_top1
};

// What the loop tells its caller; any may be empty.
struct TrainObserver {
  std::function<void(const StepReport&)> step;
  std::function<void(const IntervalReport&)> interval;
  std::function<void(int64_t step, int64_t steps)> progress;
  std::function<void(int64_t epoch, const EvalReport&)> evaluated;
  std::function<void(const std::string&)> warning;
  // When the state is to be saved: see save_every, and at the end, however the
  // run ends. After the evaluation of that step.
  std::function<void(const TrainPosition&)> save;
  // Names the value that ends the run when too many updates were skipped.
  OverflowMonitor::Diagnosis diagnosis;
  // Asked before each step; true ends the run there.
  std::function<bool()> stop;
};

// Steps that an epoch of so many batches takes.
int64_t UpdatesPerEpoch(int64_t batches, int64_t micro_batches);

// On several ranks, each with its own part of the data, all ranks call the same
// functions: losses and evaluations are those of all ranks' images, speeds
// those of all ranks together, and a rank's wish to stop ends the run on all.

// Trains: the source's batches, the first of which is that of the start,
// through `program`, evaluating with `evaluate` after each eval_every-th epoch
// and after the last; an evaluation without a result is not reported.
//
// Where the device works beside the host (Device::is_asynchronous), a step is
// reported once the next one has been enqueued, on several ranks once the one
// after that has. Before an evaluation or a save all steps are reported.
TrainReport Train(Session& session, int program, BatchSource& source,
                  const TrainOptions& options, const TrainObserver& observer,
                  const std::function<std::optional<EvalReport>()>& evaluate);

// One epoch of the source through an evaluation program: every image counts
// once, whatever the batch size. `stop` is asked before each batch; where it is
// true, the rest is left out and nothing is reported, on one rank; several end
// what they have begun. They all evaluate with rank 0's running statistics.
// `progress` is told after each batch how many of how many are done, `done`
// gets the batch, while the program's outputs are its. Throws kData for an
// empty source.
std::optional<EvalReport> Evaluate(
    Session& session, int program, BatchSource& source,
    const std::function<bool()>& stop = {},
    const std::function<void(int64_t done, int64_t batches)>& progress = {},
    const std::function<void(const Batch&)>& done = {});

}  // namespace fusor::runtime
