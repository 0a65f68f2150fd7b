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
// can prepare the next batch. Steps are enqueued in groups (Program::RunGroup),
// mostly of one step. Results of group n are taken once group n + lag() has
// been enqueued; taking them earlier blocks. Results are taken in order.
class StepResults {
 public:
  // The session must outlive it. `over_ranks`: losses are means over all ranks,
  // which must make the same calls; otherwise over own micro-batches only.
  // `max_steps`: upper limit of the steps of a group.
  explicit StepResults(Session& session, bool over_ranks = true,
                       int64_t max_steps = 1);
  ~StepResults();
  StepResults(const StepResults&) = delete;
  StepResults& operator=(const StepResults&) = delete;

  // 0 if the device is synchronous. Otherwise 1, or 2 with several ranks,
  // because the all-reduce is enqueued after the next group.
  int64_t lag() const { return lag_; }
  // Returns the number of groups whose results have not been taken.
  int64_t pending() const { return ended_ - taken_; }

  // Call sequence of one group: Begin; for each step and micro-batch, in order,
  // its program (or the whole group's) and AddLoss; AddOutput and AddState for
  // further results of the last step; End. REQUIRES: pending() <= lag().
  void Begin();
  void AddLoss(const Program& program, int output, int64_t slot = 0);
  void AddOutput(const Program& program, int output);
  void AddState(const std::string& name);
  // `steps`: steps in the group, which have equally many losses. `stop`: this
  // rank requests a stop.
  void End(bool stop = false, int64_t steps = 1);

  struct Result {
    double loss = 0;    // mean over micro-batches and ranks
    bool stop = false;  // some rank requests a stop
    // Seconds per step since the group's Begin, or since the previous Take if
    // that was later.
    double seconds = 0;
    std::vector<double> others;  // of AddOutput and AddState, in call order
  };
  // Takes the results of the oldest pending group, one per step. Blocks until
  // they are ready; throws device errors raised by then.
  std::vector<Result> Take();

 private:
  using Clock = std::chrono::steady_clock;

  // Pending groups and the one being added.
  static constexpr int64_t kGroups = 3;

  // Scalars of one group in host memory that the device writes.
  struct Slot {
    std::vector<ir::DType> dtypes;
    size_t losses = 0;
    size_t steps = 1;
    bool stop = false;
    Clock::time_point begun;
    std::unique_ptr<Memory> scalars;  // 8 bytes each
    std::unique_ptr<Memory> sums;     // all-reduced doubles
    std::unique_ptr<Event> copied;    // scalars are ready
    std::unique_ptr<Event> summed;
  };

  Slot& SlotOf(int64_t group) { return slots_[group % kGroups]; }
  void* NextScalar(Slot& slot);
  static double Scalar(Slot& slot, size_t i);
  static double MeanLoss(Slot& slot, size_t step);
  void SumOverRanks(Slot& slot);

  Session& session_;
  const int ranks_;  // ranks over which losses are summed
  const int64_t lag_;
  const size_t sums_;  // per group: a loss per step, ranks that request a stop
  std::vector<Slot> slots_;
  int64_t ended_ = 0;   // groups enqueued
  int64_t summed_ = 0;  // groups whose all-reduce is enqueued
  int64_t taken_ = 0;
  Clock::time_point taken_at_;
};

}  // namespace fusor::runtime
