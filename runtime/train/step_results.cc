#include "runtime/train/step_results.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"
#include "runtime/program.h"
#include "runtime/state_store.h"

namespace fusor::runtime {
namespace {

constexpr size_t kScalarBytes = 8;
constexpr size_t kFirstScalars = 8;  // initial capacity per group

}  // namespace

StepResults::StepResults(Session& session, bool over_ranks, int64_t max_steps)
    : session_(session),
      ranks_(over_ranks ? session.world_size() : 1),
      lag_(!session.device().is_asynchronous() ? 0
           : ranks_ == 1                       ? 1
                                               : 2),
      sums_(static_cast<size_t>(max_steps) + 1),
      slots_(kGroups) {
  for (Slot& slot : slots_) {
    slot.scalars = session.AllocateHost(kFirstScalars * kScalarBytes);
    slot.sums = session.AllocateHost(sums_ * sizeof(double));
    slot.copied = session.CreateEvent();
    slot.summed = session.CreateEvent();
  }
}

// Pending copies write to the slots.
StepResults::~StepResults() {
  if (pending() == 0) return;
  try {
    session_.Await(*SlotOf(ended_ - 1).copied);
    if (summed_ > taken_) session_.Await(*SlotOf(summed_ - 1).summed);
  } catch (const Error&) {
    // Take reports errors; a destructor must not throw.
  }
}

void StepResults::Begin() {
  FUSOR_ASSERT(pending() <= lag_, "{} groups are pending", pending());
  Slot& slot = SlotOf(ended_);
  slot.dtypes.clear();
  slot.losses = 0;
  slot.begun = Clock::now();
}

// Returns memory for the next scalar. Growing waits for the group's own copies;
// no other enqueued work writes to this slot.
void* StepResults::NextScalar(Slot& slot) {
  const size_t offset = slot.dtypes.size() * kScalarBytes;
  if (slot.scalars->bytes() <= offset) {
    auto larger = session_.AllocateHost(2 * offset);
    session_.Record(*slot.copied);
    session_.Await(*slot.copied);
    std::memcpy(larger->data(), slot.scalars->data(), offset);
    slot.scalars = std::move(larger);
  }
  return static_cast<char*>(slot.scalars->data()) + offset;
}

void StepResults::AddLoss(const Program& program, int output,
                          int64_t program_slot) {
  Slot& slot = SlotOf(ended_);
  FUSOR_ASSERT(slot.losses == slot.dtypes.size(), "a loss after other results");
  slot.dtypes.push_back(
      program.EnqueueScalar(output, NextScalar(slot), program_slot));
  ++slot.losses;
}

void StepResults::AddOutput(const Program& program, int output) {
  Slot& slot = SlotOf(ended_);
  slot.dtypes.push_back(program.EnqueueScalar(output, NextScalar(slot)));
}

void StepResults::AddState(const std::string& name) {
  Slot& slot = SlotOf(ended_);
  slot.dtypes.push_back(session_.state().EnqueueScalar(name, NextScalar(slot)));
}

void StepResults::End(bool stop, int64_t steps) {
  Slot& slot = SlotOf(ended_);
  slot.steps = static_cast<size_t>(steps);
  FUSOR_ASSERT(slot.losses > 0 && slot.losses % slot.steps == 0,
               "{} losses of {} steps", slot.losses, steps);
  FUSOR_ASSERT(slot.steps < sums_, "a group of {} steps, at most {}", steps,
               sums_ - 1);
  slot.stop = stop;
  session_.Record(*slot.copied);
  ++ended_;
  if (ranks_ == 1) return;
  // The previous group's losses are ready while the one just enqueued runs.
  while (summed_ < ended_ - (lag_ > 0 ? 1 : 0)) SumOverRanks(SlotOf(summed_++));
}

double StepResults::Scalar(Slot& slot, size_t i) {
  const char* at =
      static_cast<const char*>(slot.scalars->data()) + i * kScalarBytes;
  return ir::LoadTensor({slot.dtypes[i], {}, {}}, at).data[0];
}

double StepResults::MeanLoss(Slot& slot, size_t step) {
  const size_t batches = slot.losses / slot.steps;
  double sum = 0;
  for (size_t i = 0; i < batches; ++i) sum += Scalar(slot, step * batches + i);
  return sum / static_cast<double>(batches);
}

void StepResults::SumOverRanks(Slot& slot) {
  session_.Await(*slot.copied);
  // The count must not vary (Session::EnqueueAllReduce).
  const std::span numbers(static_cast<double*>(slot.sums->data()), sums_);
  for (size_t s = 0; s + 1 < sums_; ++s) {
    numbers[s] = s < slot.steps ? MeanLoss(slot, s) : 0;
  }
  numbers.back() = slot.stop ? 1 : 0;
  session_.EnqueueAllReduce(numbers);
  session_.Record(*slot.summed);
}

std::vector<StepResults::Result> StepResults::Take() {
  FUSOR_ASSERT(pending() > 0, "no group is pending");
  Slot& slot = SlotOf(taken_);
  std::vector<Result> results(slot.steps);
  if (ranks_ == 1) {
    session_.Await(*slot.copied);
    for (size_t s = 0; s < slot.steps; ++s) {
      results[s].loss = MeanLoss(slot, s);
      results[s].stop = slot.stop;
    }
  } else {
    while (summed_ <= taken_) SumOverRanks(SlotOf(summed_++));
    session_.Await(*slot.summed);
    const auto* numbers = static_cast<const double*>(slot.sums->data());
    for (size_t s = 0; s < slot.steps; ++s) {
      results[s].loss = numbers[s] / ranks_;
      results[s].stop = numbers[sums_ - 1] > 0;
    }
  }
  for (size_t i = slot.losses; i < slot.dtypes.size(); ++i) {
    results.back().others.push_back(Scalar(slot, i));
  }
  ++taken_;
  const Clock::time_point now = Clock::now();
  const std::chrono::duration<double> seconds =
      now - std::max(slot.begun, taken_at_);
  for (Result& result : results) {
    result.seconds = seconds.count() / static_cast<double>(slot.steps);
  }
  taken_at_ = now;
  return results;
}

}  // namespace fusor::runtime
