#pragma once

// What streams do while they capture, and the graph that it becomes: work on
// several branches, one a stream, ordered by events. Follows the driver's rules
// (CUDA C++ programming guide, "Cross-stream Dependencies and Events"): a
// stream joins by waiting for an event of the capture, and must be waited for
// before the capture ends.

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
  // Streams that capture for it.
  std::vector<const CUstream_st*> streams() const;

  enum class Kind : uint8_t {
    kKernel,
    kDependentKernel,  // behind a kernel, by a programmatic edge
    kHostFunction,     // of cuLaunchHostFunc
    kOther,
  };
  void Add(CUstream_st* stream, Work work, Kind kind = Kind::kOther);
  // The number of the record.
  int Record(CUstream_st* stream);
  // A stream that is not part of it becomes one.
  void Wait(CUstream_st* stream, int record);
  // Whether the origin has waited for all that other streams were given.
  bool Joined() const;

  // Pieces of work that wait for a function of the host, such functions
  // excepted.
  int64_t work_behind_host_functions() const { return behind_; }
  int64_t host_functions() const {
    return static_cast<int64_t>(host_functions_.size());
  }

  int64_t programmatic_edges() const { return programmatic_; }

  int num_branches() const { return static_cast<int>(num_ops_.size()); }
  // Gives all of it to the queues, one a branch; the first is the stream's that
  // the graph is launched on.
  void Replay(EmulatedMachine& machine, const std::vector<int>& queues) const;

 private:
  struct Op {
    int branch;
    Work work{};  // none: a record or a wait
    int records = -1;
    int waits = -1;
  };
  using Clock = std::vector<int64_t>;  // ops of each branch that have happened

  int BranchOf(CUstream_st* stream);
  Op& AddOp(CUstream_st* stream);

  std::map<const CUstream_st*, int> branches_;
  std::vector<Op> ops_;
  std::vector<int64_t> num_ops_;  // of each branch
  std::vector<Clock> clocks_;     // of each branch
  std::vector<Clock> records_;    // when each record is
  // Branch of each function of the host, and its number there.
  std::vector<std::pair<size_t, int64_t>> host_functions_;
  int64_t behind_ = 0;
  int64_t programmatic_ = 0;
};

}  // namespace fusor::test
