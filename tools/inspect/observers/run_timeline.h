#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/backend/communicator.h"
#include "runtime/program.h"
#include "runtime/step_observer.h"

namespace fusor::inspect {

// Returns the time of each step of the plan in ms, the median of `runs` calls
// of Program::Profile. They are real steps: state changes.
std::vector<double> MedianProfile(runtime::Program& program, int runs);

// Records the start and end of each step of a program and of each collective.
// Shows which communication overlaps and which steps wait for it.
//
// Records the runs `first` to `last` of a session's programs, counted from 1.
// An observed session synchronises after each step. Overlap is therefore real
// only on devices whose streams execute synchronously, such as the CPU.
class RunTimeline : public runtime::StepObserver {
 public:
  // `communicator`: the session's, or null. Its recorded times are consumed.
  RunTimeline(runtime::Communicator* communicator, int64_t first, int64_t last)
      : communicator_(communicator), first_(first), last_(last) {}

  void Before(const runtime::Program& program, size_t step) override;
  void After(const runtime::Program& program, size_t step) override;

  // Returns computation, waits and collectives of this rank in the Trace Event
  // Format, for Perfetto and chrome://tracing. `otherData` has `rank` and
  // `runs` [{`run`, `step_ms`, `compute_ms` without waits, `communication_ms`,
  // `not_overlapped_ms` of waits, `collectives` [{`op`, `name`, `tensors`,
  // `bytes`, `ready_ms`, `start_ms`, `end_ms` since the start of the run}]}].
  // Omits runs that have not ended.
  nlohmann::json Trace();

 private:
  struct StepTime {
    size_t step = 0;              // index in the plan
    double begun = 0, ended = 0;  // seconds on the steady clock
  };
  struct Run {
    int64_t number = 0;
    const codegen::Plan* plan = nullptr;
    std::vector<StepTime> steps;
  };
  class Writer;

  bool records() const { return count_ >= first_ && count_ <= last_; }
  void TakeTimes();

  runtime::Communicator* const communicator_;
  const int64_t first_, last_;
  int64_t count_ = 0;  // runs started so far
  std::vector<Run> runs_;
  std::vector<runtime::CollectiveTime> collectives_;
};

}  // namespace fusor::inspect
