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
constexpr size_t kFirstScalars = 8;  // initial capacity per step
constexpr size_t kSums = 2;  // loss, number of ranks that request a stop

}  // namespace

StepResults::StepResults(Session& session, bool over_ranks)
    : session_(session),
      ranks_(over_ranks ? session.world_size() : 1),
      lag_(!session.device().is_asynchronous() ? 0
           : ranks_ == 1                       ? 1
                                               : 2),
      slots_(kSteps) {
  for (Slot& slot : slots_) {
    slot.scalars = session.AllocateHost(kFirstScalars * kScalarBytes);
    slot.sums = session.AllocateHost(kSums * sizeof(double));
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
  FUSOR_ASSERT(pending() <= lag_, "{} steps are pending", pending());
  Slot& slot = SlotOf(ended_);
  slot.dtypes.clear();
  slot.losses = 0;
  slot.begun = Clock::now();
}

// Returns memory for the next scalar. Growing waits for the step's own copies;
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

void StepResults::AddLoss(const Program& program, int output) {
  Slot& slot = SlotOf(ended_);
  FUSOR_ASSERT(slot.losses == slot.dtypes.size(), "a loss after other results");
  slot.dtypes.push_back(program.EnqueueScalar(output, NextScalar(slot)));
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

void StepResults::End(bool stop) {
  Slot& slot = SlotOf(ended_);
  FUSOR_ASSERT(slot.losses > 0, "a step without a loss");
  slot.stop = stop;
  session_.Record(*slot.copied);
  ++ended_;
  if (ranks_ == 1) return;
  // The previous step's loss is ready while the step just enqueued runs.
  while (summed_ < ended_ - (lag_ > 0 ? 1 : 0)) SumOverRanks(SlotOf(summed_++));
}

double StepResults::Scalar(Slot& slot, size_t i) {
  const char* at =
      static_cast<const char*>(slot.scalars->data()) + i * kScalarBytes;
  return ir::LoadTensor({slot.dtypes[i], {}, {}}, at).data[0];
}

double StepResults::MeanLoss(Slot& slot) {
  double sum = 0;
  for (size_t i = 0; i < slot.losses; ++i) sum += Scalar(slot, i);
  return sum / static_cast<double>(slot.losses);
}

void StepResults::SumOverRanks(Slot& slot) {
  session_.Await(*slot.copied);
  auto* numbers = static_cast<double*>(slot.sums->data());
  numbers[0] = MeanLoss(slot);
  numbers[1] = slot.stop ? 1 : 0;
  session_.EnqueueAllReduce({numbers, kSums});
  session_.Record(*slot.summed);
}

StepResults::Result StepResults::Take() {
  FUSOR_ASSERT(pending() > 0, "no step is pending");
  Slot& slot = SlotOf(taken_);
  Result result;
  if (ranks_ == 1) {
    session_.Await(*slot.copied);
    result.loss = MeanLoss(slot);
    result.stop = slot.stop;
  } else {
    while (summed_ <= taken_) SumOverRanks(SlotOf(summed_++));
    session_.Await(*slot.summed);
    const auto* numbers = static_cast<const double*>(slot.sums->data());
    result.loss = numbers[0] / ranks_;
    result.stop = numbers[1] > 0;
  }
  for (size_t i = slot.losses; i < slot.dtypes.size(); ++i) {
    result.others.push_back(Scalar(slot, i));
  }
  ++taken_;
  const Clock::time_point now = Clock::now();
  result.seconds =
      std::chrono::duration<double>(now - std::max(slot.begun, taken_at_))
          .count();
  taken_at_ = now;
  return result;
}

}  // namespace fusor::runtime
