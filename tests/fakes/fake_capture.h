#pragma once

// The calls that streams capture, and the resulting graph: one branch per
// stream, ordered by events. Follows the driver's rules (CUDA C++ programming
// guide, "Cross-stream Dependencies and Events"): a stream joins by waiting for
// an event of the capture, and must be joined again before the capture ends.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/fakes/emulated_machine.h"

struct CUstream_st;

namespace fusor::test {

class FakeCapture {
 public:
  using Work = EmulatedMachine::Work;

  explicit FakeCapture(CUstream_st* origin) { BranchOf(origin); }

  bool IsOrigin(const CUstream_st* stream) const {
    return branches_.at(stream) == 0;
  }
  // Returns the streams that are part of the capture.
  std::vector<const CUstream_st*> streams() const;

  // `of_host`: by cuLaunchHostFunc.
  void Add(CUstream_st* stream, Work work, bool of_host = false);
  // Returns the index of the record.
  int Record(CUstream_st* stream);
  // Adds the stream to the capture if it is not part of it.
  void Wait(CUstream_st* stream, int record);
  // Returns whether the origin has waited for all work of other streams.
  bool Joined() const;

  // Counts the captured work that waits for a host function, except other host
  // functions.
  int64_t work_behind_host_functions() const { return behind_; }
  int64_t host_functions() const {
    return static_cast<int64_t>(host_functions_.size());
  }

  int num_branches() const { return static_cast<int>(num_ops_.size()); }
  // Enqueues all work, one branch per queue. The first queue belongs to the
  // stream that launches the graph.
  void Replay(EmulatedMachine& machine, const std::vector<int>& queues) const;

 private:
  struct Op {
    int branch;
    Work work{};  // null: a record or a wait
    int records = -1;
    int waits = -1;
  };
  using Clock = std::vector<int64_t>;  // number of finished ops per branch

  int BranchOf(CUstream_st* stream);
  Op& AddOp(CUstream_st* stream);

  std::map<const CUstream_st*, int> branches_;
  std::vector<Op> ops_;
  std::vector<int64_t> num_ops_;  // per branch
  std::vector<Clock> clocks_;     // per branch
  std::vector<Clock> records_;    // time of each record
  // Branch of each host function, and its index within the branch.
  std::vector<std::pair<size_t, int64_t>> host_functions_;
  int64_t behind_ = 0;
};

}  // namespace fusor::test
