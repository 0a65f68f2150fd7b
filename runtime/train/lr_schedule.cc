#include "runtime/train/lr_schedule.h"

#include <algorithm>
#include <cmath>

#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::runtime {
namespace {

// Returns the remaining share of `base - end` at time share t.
double Remaining(const LrScheduleOptions& options, double t) {
  switch (options.kind) {
    case LrScheduleKind::kLinear:
      return 1 - t;
    case LrScheduleKind::kCosine:
      return (1 + std::cos(M_PI * t)) / 2;
    case LrScheduleKind::kPolynomial:
      return std::pow(1 - t, options.power);
    case LrScheduleKind::kConstant:
    case LrScheduleKind::kStep:
      break;
  }
  return 1;
}

// Returns the share of its cycle, in [0, 1), at an update after the warm-up.
double ShareOfCycle(const LrScheduleOptions& options, int64_t update) {
  int64_t length = options.first_cycle;
  while (update >= length) {
    update -= length;
    length *= options.cycle_factor;
  }
  return static_cast<double>(update) / static_cast<double>(length);
}

}  // namespace

std::vector<std::string> LrScheduleNames() {
  return {"constant", "step", "linear", "cosine", "polynomial"};
}

LrScheduleKind ParseLrSchedule(const std::string& name) {
  const std::vector<std::string> names = LrScheduleNames();
  const auto it = std::find(names.begin(), names.end(), name);
  FUSOR_CHECK(it != names.end(), kUsage,
              "learning rate schedule {}: expected {}", name,
              Join(names, ", ", [](const std::string& n) { return n; }));
  return static_cast<LrScheduleKind>(it - names.begin());
}

double LearningRate(const LrScheduleOptions& o, int64_t step) {
  const int64_t update = step / o.steps_per_update;
  if (update < o.warmup) {
    return o.base * static_cast<double>(update + 1) /
           static_cast<double>(o.warmup);
  }
  if (o.kind == LrScheduleKind::kStep) {
    const auto drops =
        std::count_if(o.milestones.begin(), o.milestones.end(),
                      [&](int64_t milestone) { return update >= milestone; });
    return o.base * std::pow(o.gamma, static_cast<double>(drops));
  }
  const int64_t span = std::max<int64_t>(o.total - o.warmup, 1);
  const double t = o.first_cycle > 0
                       ? ShareOfCycle(o, update - o.warmup)
                       : std::min(1.0, static_cast<double>(update - o.warmup) /
                                           static_cast<double>(span));
  return o.end + (o.base - o.end) * Remaining(o, t);
}

}  // namespace fusor::runtime
