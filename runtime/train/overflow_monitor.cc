#include "runtime/train/overflow_monitor.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ir/state_names.h"
#include "ir/support/error.h"
#include "runtime/program.h"
#include "runtime/state_store.h"

namespace fusor::runtime {
OverflowMonitor::OverflowMonitor(Session& session, Program& program,
                                 int64_t limit, Diagnosis diagnosis)
    : session_(session),
      program_(program),
      limit_(limit),
      diagnosis_(std::move(diagnosis)),
      active_(program.HasInput(ir::kOverflows)) {
  if (active_) {
    seen_ = static_cast<int64_t>(session.state().Read(ir::kOverflows)[0]);
  }
}

void OverflowMonitor::Add(StepResults& results) const {
  FUSOR_ASSERT(active_, "program {} has no dynamic loss scale",
               program_.plan().name);
  results.AddState(ir::kLossScale);
  results.AddState(ir::kOverflows);
  results.AddState(ir::kOverflowsInRow);
}

OverflowMonitor::Reading OverflowMonitor::Read(std::span<const double> state) {
  FUSOR_ASSERT(state.size() == 3, "{} numbers", state.size());
  const auto overflows = static_cast<int64_t>(state[1]);
  const Reading reading{state[0], overflows - seen_};
  seen_ = overflows;
  const auto in_row = static_cast<int64_t>(state[2]);
  if (limit_ > 0 && in_row >= limit_) Stop(in_row, reading.scale);
  return reading;
}

// Describes the first non-finite accumulator, in order of gradient readiness.
std::string OverflowMonitor::FindBadSum() const {
  for (const codegen::PlanInput& input : program_.plan().inputs) {
    if (input.role != ir::InputRole::kAccumulator) continue;
    const std::vector<float> sum = session_.state().Read(input.name);
    const auto bad = std::count_if(sum.begin(), sum.end(),
                                   [](float x) { return !std::isfinite(x); });
    if (bad == 0) continue;
    return fmt::format("{}, after an earlier micro-batch: {} of {} elements",
                       input.name, bad, sum.size());
  }
  return "none, run again";
}

void OverflowMonitor::Stop(int64_t in_row, double scale) {
  // Must run first, because rerunning the step resets the accumulators.
  std::string first = FindBadSum();
  if (diagnosis_) {
    const std::string found = diagnosis_(session_, program_);
    if (!found.empty()) first = found;
  }
  FUSOR_CHECK(false, kDiverged,
              "training diverged: the last {} updates were skipped because of "
              "gradients that are not finite, at loss scale {} in the end; the "
              "first such value: {}",
              in_row, scale, first);
}

}  // namespace fusor::runtime
