#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/dtype.h"
#include "runtime/program.h"
#include "runtime/session.h"

namespace fusor::runtime {

// Reads per-step scalars while the device runs later steps, so that the host
// can prepare the next batch. Results of step n are taken once step n + lag()
// has been enqueued; taking them earlier blocks. Results are taken in step
// order.
class StepResults {
 public:
  // The session must outlive it. `over_ranks`: losses are means over all ranks,
  // which must make the same calls; otherwise over own micro-batches only.
  explicit StepResults(Session& session, bool over_ranks = true);
  ~StepResults();
  StepResults(const StepResults&) = delete;
  StepResults& operator=(const StepResults&) = delete;

  // 0 if the device is synchronous. Otherwise 1, or 2 with several ranks,
  // because the all-reduce is enqueued after the next step.
  int64_t lag() const { return lag_; }
  // Returns the number of steps whose results have not been taken.
  int64_t pending() const { return ended_ - taken_; }

  // Call sequence of one step: Begin; for each micro-batch its program and
  // AddLoss; AddOutput and AddState for further results; End. REQUIRES:
  // pending() <= lag().
  void Begin();
  void AddLoss(const Program& program, int output);
  void AddOutput(const Program& program, int output);
  void AddState(const std::string& name);
  // `stop`: this rank requests a stop.
  void End(bool stop = false);

  struct Result {
    double loss = 0;             // mean over micro-batches and ranks
    bool stop = false;           // some rank requests a stop
    double seconds = 0;          // since Begin or the previous Take, if later
    std::vector<double> others;  // of AddOutput and AddState, in call order
  };
  // Takes the results of the oldest pending step. Blocks until they are ready;
  // throws device errors raised by then.
  Result Take();

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr int64_t kSteps = 3;  // pending steps and the one being added

  // Scalars of one step in host memory that the device writes.
  struct Slot {
    std::vector<ir::DType> dtypes;
    size_t losses = 0;
    bool stop = false;
    Clock::time_point begun;
    std::unique_ptr<Memory> scalars;  // 8 bytes each
    std::unique_ptr<Memory> sums;     // all-reduced doubles
    std::unique_ptr<Event> copied;    // scalars are ready
    std::unique_ptr<Event> summed;
  };

  Slot& SlotOf(int64_t step) { return slots_[step % kSteps]; }
  void* NextScalar(Slot& slot);
  static double Scalar(Slot& slot, size_t i);
  static double MeanLoss(Slot& slot);
  void SumOverRanks(Slot& slot);

  Session& session_;
  const int ranks_;  // ranks over which losses are summed
  const int64_t lag_;
  std::vector<Slot> slots_;
  int64_t ended_ = 0;   // steps enqueued
  int64_t summed_ = 0;  // steps whose all-reduce is enqueued
  int64_t taken_ = 0;
  Clock::time_point taken_at_;
};

}  // namespace fusor::runtime
