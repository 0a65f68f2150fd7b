#include "runtime/train/lr_schedule.h"

#include <algorithm>
#include <cmath>

#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::runtime {

std::vector<std::string> LrScheduleNames() {
  return {"constant", "step", "cosine"};
}

LrScheduleKind ParseLrSchedule(const std::string& name) {
  const std::vector<std::string> names = LrScheduleNames();
  const auto it = std::find(names.begin(), names.end(), name);
  FUSOR_CHECK(it != names.end(), kUsage,
              "learning rate schedule {}: expected {}", name,
              Join(names, ", ", [](const std::string& n) { return n; }));
  return static_cast<LrScheduleKind>(it - names.begin());
}

double LearningRate(const LrScheduleOptions& options, int64_t step) {
  if (step < options.warmup_steps) {
    return options.base * static_cast<double>(step + 1) /
           static_cast<double>(options.warmup_steps);
  }
  switch (options.kind) {
    case LrScheduleKind::kConstant:
      return options.base;
    case LrScheduleKind::kStep: {
      double rate = options.base;
      for (int64_t milestone : options.milestones) {
        if (step >= milestone) rate *= options.gamma;
      }
      return rate;
    }
    case LrScheduleKind::kCosine: {
      const int64_t span =
          std::max<int64_t>(options.total_steps - options.warmup_steps, 1);
      const double t =
          std::min(1.0, static_cast<double>(step - options.warmup_steps) /
                            static_cast<double>(span));
      return options.end +
             (options.base - options.end) * (1 + std::cos(M_PI * t)) / 2;
    }
  }
  return options.base;
}

}  // namespace fusor::runtime
