#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/dtype.h"
#include "runtime/session.h"

namespace fusor::runtime {

// The scalars that the host wants of each step, read while the device runs
// later steps: the host prepares the next batch meanwhile. Results of step n
// are taken once step n + lag() has been enqueued, or earlier, which waits. In
// the order of the steps.
class StepResults {
 public:
  // The session must outlive it. `over_ranks`: losses are means over all ranks,
  // which make the same calls; else over this one's micro-batches.
  explicit StepResults(Session& session, bool over_ranks = true);
  ~StepResults();
  StepResults(const StepResults&) = delete;
  StepResults& operator=(const StepResults&) = delete;

  // 0 where the device works only while the host waits for it. Else 1, and 2
  // with several ranks: sums over ranks are enqueued behind the step after.
  int64_t lag() const { return lag_; }
  // Steps whose results have not been taken.
  int64_t pending() const { return ended_ - taken_; }

  // One step: Begin, for each of its micro-batches its program and AddLoss,
  // AddOutput and AddState for what else is wanted after it, End. REQUIRES:
  // pending() <= lag().
  void Begin();
  void AddLoss(int program, int output);
  void AddOutput(int program, int output);
  void AddState(const std::string& name);
  // Whether this rank wants to stop.
  void End(bool stop = false);

  struct Result {
    double loss = 0;     // mean over micro-batches and ranks
    bool stop = false;   // a rank wants to stop
    double seconds = 0;  // since Begin, or since the step before was taken
    std::vector<double> others;  // of AddOutput and AddState, in their order
  };
  // Of the oldest pending step. Blocks until it is there; throws what went
  // wrong on the device by then.
  Result Take();

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr int64_t kSteps = 3;  // pending, and the one that is added

  // Scalars of one step in memory that the device writes.
  struct Slot {
    std::vector<ir::DType> dtypes;
    size_t losses = 0;
    bool stop = false;
    Clock::time_point begun;
    std::unique_ptr<Memory> scalars;  // 8 bytes each
    std::unique_ptr<Memory> sums;     // over ranks: doubles
    std::unique_ptr<Event> copied;    // scalars
    std::unique_ptr<Event> summed;
  };

  Slot& SlotOf(int64_t step) { return slots_[step % kSteps]; }
  void* NextScalar(Slot& slot);
  static double Scalar(Slot& slot, size_t i);
  static double MeanLoss(Slot& slot);
  void SumOverRanks(Slot& slot);

  Session& session_;
  const int ranks_;  // over which losses are summed
  const int64_t lag_;
  std::vector<Slot> slots_;
  int64_t ended_ = 0;   // steps
  int64_t summed_ = 0;  // of which sums have been enqueued
  int64_t taken_ = 0;
  Clock::time_point taken_at_;
};

}  // namespace fusor::runtime
