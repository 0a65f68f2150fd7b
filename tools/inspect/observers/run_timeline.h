#pragma once

// When each step of a program and each collective began and ended: to see what
// of the communication runs beside the computation, and what waits for it.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/backend/communicator.h"
#include "runtime/session.h"

namespace fusor::runtime {

// Records the runs `first` to `last` of a session's programs, counted from 1.
// Overlap is real on devices whose streams have nothing pending, as the CPU's;
// elsewhere the session, which waits after each step, prevents it.
class RunTimeline : public StepObserver {
 public:
  // `communicator`: the session's, null for none; its times are taken.
  RunTimeline(Communicator* communicator, int64_t first, int64_t last)
      : communicator_(communicator), first_(first), last_(last) {}

  void Before(const Session& session, int program, size_t step) override;
  void After(const Session& session, int program, size_t step) override;

  // In the Trace Event Format, which Perfetto and chrome://tracing open: the
  // computation with its waits, and the collectives, of this rank. `otherData`
  // has `runs` [{`run`, `step_ms`, `compute_ms` without waits,
  // `communication_ms`, `exposed_ms` of waits, `collectives` [{`op`, `name`,
  // `tensors`, `bytes`, `ready_ms`, `start_ms`, `end_ms` since the run
  // began}]}]. Of runs that have not ended, nothing.
  nlohmann::json Trace();

 private:
  struct StepTime {
    size_t step = 0;              // of the plan
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

  Communicator* const communicator_;
  const int64_t first_, last_;
  int64_t count_ = 0;  // runs that have begun
  std::vector<Run> runs_;
  std::vector<CollectiveTime> collectives_;
};

}  // namespace fusor::runtime
