#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "runtime/session.h"
#include "runtime/train/step_results.h"

namespace fusor::runtime {

// What became of the dynamic loss scale of a training program. The device
// counts the updates that it skips because a gradient is not finite
// (passes/training/skip_overflow.cc); the host looks now and then.
class OverflowMonitor {
 public:
  // Runs the last step of a program again and returns its first value that is
  // not finite; empty if there is none.
  using Diagnosis = std::function<std::string(Session& session, int program)>;

  // `limit` skipped updates in a row end the run; 0: any number may be.
  // `diagnosis` may be empty.
  OverflowMonitor(Session& session, int program, int64_t limit,
                  Diagnosis diagnosis = {});

  // False without a dynamic loss scale.
  bool active() const { return active_; }

  struct Reading {
    double scale = 0;     // now
    int64_t skipped = 0;  // updates since the last reading
  };
  // Adds what a reading needs to the results of the step that was enqueued
  // last. REQUIRES: active().
  void Add(StepResults& results) const;
  // `state`: what these results then have. Throws kDiverged when too many
  // updates in a row have been skipped, naming the first value of the last step
  // that is not finite (`diagnosis`). If the step is finite now, earlier
  // micro-batches were not: then the first sum of theirs that shows it.
  Reading Read(std::span<const double> state);

 private:
  std::string FindBadSum() const;
  [[noreturn]] void Stop(int64_t in_row, double scale);

  Session& session_;
  const int program_;
  const int64_t limit_;
  const Diagnosis diagnosis_;
  const bool active_;
  int64_t seen_ = 0;
};

}  // namespace fusor::runtime
