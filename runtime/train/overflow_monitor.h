#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/train/step_results.h"

namespace fusor::runtime {

// Monitors the dynamic loss scale of a training program. The device counts
// updates skipped because of a non-finite gradient
// (passes/training/skip_overflow.cc); the host reads the counters periodically.
class OverflowMonitor {
 public:
  // Reruns the last step of a program and names its first non-finite value;
  // empty if there is none.
  using Diagnosis =
      std::function<std::string(Session& session, Program& program)>;

  // `limit` consecutive skipped updates end the run; 0: no limit. `diagnosis`
  // may be empty.
  OverflowMonitor(Session& session, Program& program, int64_t limit,
                  Diagnosis diagnosis = {});

  // Returns false without a dynamic loss scale.
  bool active() const { return active_; }

  struct Reading {
    double scale = 0;     // current loss scale
    int64_t skipped = 0;  // updates since the last reading
  };
  // Adds the state that a reading needs to the results of the step enqueued
  // last. REQUIRES: active().
  void Add(StepResults& results) const;
  // Evaluates `state`, the values of those results. Throws kDiverged after too
  // many consecutive skipped updates, naming the first non-finite value of the
  // last step (`diagnosis`). If that step is now finite, an earlier micro-batch
  // was not; then names the first accumulator that is not finite.
  Reading Read(std::span<const double> state);

 private:
  std::string FindBadSum() const;
  [[noreturn]] void Stop(int64_t in_row, double scale);

  Session& session_;
  Program& program_;
  const int64_t limit_;
  const Diagnosis diagnosis_;
  const bool active_;
  int64_t seen_ = 0;
};

}  // namespace fusor::runtime
