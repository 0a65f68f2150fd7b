#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "runtime/backend/communicator.h"

namespace fusor::test {

// Counts the finished work items of each queue of a device.
inline constexpr size_t kMaxQueues = 16;
using QueueClock = std::array<int64_t, kMaxQueues>;

// Checks a device while it runs a plan, and tracks which value every 64 bytes
// of its arenas hold. It uses only the plan and the addresses passed to steps,
// and shares no code with VerifyPlan or the executor. Throws kInternal, naming
// step and buffer, if a step
//   - is not the plan's next one, or has arguments at other addresses than
//     planned;
//   - has arguments that are shorter than its kernel or call requires;
//   - reads another value than planned, or memory that holds none;
//   - accesses memory that unfinished work may still write, or overwrites
//     memory that unfinished work may still read.
class PlanWatch {
 public:
  // Returns whether the bytes are within one allocation of the device.
  using Owns = std::function<bool(const char* begin, int64_t bytes)>;

  // `started` is the work that the device had been given before the plan. The
  // plan must outlive the watch.
  PlanWatch(const codegen::Plan& plan, Owns owns, QueueClock started);

  // Records that the next step is enqueued: a kernel or call of the plan, or a
  // collective. Returns its number. Fills memory that is dead between steps
  // with NaN bytes.
  int Issue(const void* work, void* const* args);
  int IssueCollective(const runtime::Collective& collective);
  // Records that the step runs on `queue`. It is the last work item that
  // `clock` counts.
  void Run(int step, int queue, const QueueClock& clock);

  bool ended() const { return num_run_ == plan_.steps.size(); }
  // Checks that inputs, constants and outputs have their values at the end.
  void CheckEnd() const;

 private:
  static constexpr int kGarbage = -1;
  static constexpr int64_t kLine = codegen::kBufferAlignment;

  // The state of kLine bytes of an arena.
  struct Line {
    int buffer = kGarbage;  // whose value it holds
    int writer = -1;        // queue; -1: none, or written before the plan
    int64_t written = 0;    // time by that queue's clock
    std::array<int64_t, kMaxQueues> read{};  // last read, by each queue's clock
  };

  const codegen::Buffer& buffer(int b) const { return plan_.buffers[b]; }
  std::string Name(int step) const;
  std::vector<int> Parts(int b) const;
  template <typename Call>
  void ForEachLine(int b, Call call);
  const codegen::Step& NextStep() const;
  void Locate(int b, const void* address);
  int64_t BytesOfArg(const codegen::Step& step, size_t arg) const;
  void CheckArguments(int s) const;
  void Read(int b, int step, int queue, const QueueClock& clock);
  void Write(int b, size_t arg, int step, int queue, const QueueClock& clock);
  bool MayOverwrite(int old, const codegen::Step& step, size_t result) const;

  const codegen::Plan& plan_;
  const Owns owns_;
  const QueueClock started_;
  std::vector<char*> bases_;              // by arena; null: not yet known
  std::vector<std::vector<Line>> lines_;  // by arena
  size_t num_issued_ = 0;
  size_t num_run_ = 0;
};

}  // namespace fusor::test
