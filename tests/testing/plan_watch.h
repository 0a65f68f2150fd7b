#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "runtime/backend/communicator.h"

namespace fusor::test {

// Of each queue of a device, how many pieces of its work had ended.
inline constexpr size_t kMaxQueues = 16;
using QueueClock = std::array<int64_t, kMaxQueues>;

// Looks on while a device runs a plan, and follows which value lies in every
// 64 bytes of its arenas. It knows the plan and the addresses that steps were
// given, but nothing of VerifyPlan, nor of the executor. Throws kInternal,
// naming step and buffer, when a step
//   - is not the plan's next one, or its arguments lie elsewhere than planned;
//   - has arguments that are shorter than its kernel or call takes;
//   - reads another value than the plan says, or one that is not there;
//   - touches memory that work which need not have ended writes, or reads in
//     order to have it overwritten.
class PlanWatch {
 public:
  // Whether the bytes lie within one piece of the device's memory.
  using Owns = std::function<bool(const char* begin, int64_t bytes)>;

  // `started`: the work that the device had before the plan. The plan must
  // outlive the watch.
  PlanWatch(const codegen::Plan& plan, Owns owns, QueueClock started);

  // The next step is enqueued: a kernel or call of the plan, or a collective
  // on so many bytes. Returns its number. What is in memory that is dead
  // between steps becomes garbage: NaN, as a number.
  int Issue(const void* work, void* const* args);
  int IssueCollective(const runtime::Collective& collective);
  // The step runs, as the last of the work that `clock` counts, on `queue`.
  void Run(int step, int queue, const QueueClock& clock);

  bool ended() const { return num_run_ == plan_.steps.size(); }
  // Inputs, constants and outputs have the values that they should.
  void CheckEnd() const;

 private:
  static constexpr int kGarbage = -1;
  static constexpr int64_t kLine = codegen::kBufferAlignment;

  // A line of an arena.
  struct Line {
    int buffer = kGarbage;  // whose value it has
    int writer = -1;        // queue; -1: nobody, or before the plan
    int64_t written = 0;    // by that queue's clock
    std::array<int64_t, kMaxQueues> read{};  // by each queue's clock
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
  std::vector<char*> bases_;              // of arenas; null: not known yet
  std::vector<std::vector<Line>> lines_;  // of arenas
  size_t num_issued_ = 0;
  size_t num_run_ = 0;
};

}  // namespace fusor::test
