#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fusor::runtime {

enum class LrScheduleKind { kConstant, kStep, kCosine };

// Throws kUsage with the known names.
LrScheduleKind ParseLrSchedule(const std::string& name);
std::vector<std::string> LrScheduleNames();

struct LrScheduleOptions {
  LrScheduleKind kind = LrScheduleKind::kConstant;
  double base = 0.1;                // peak learning rate
  int64_t warmup_steps = 0;         // linear from base/warmup_steps to base
  int64_t total_steps = 1;          // cosine: where it reaches `end`
  double end = 0;                   // cosine
  std::vector<int64_t> milestones;  // step: where the rate drops, in steps
  double gamma = 0.1;               // step: by this factor
};

// The learning rate of a step, counted from 0. Warm-up and cosine both run per
// step; the cosine spans what the warm-up leaves:
//   base * (step + 1) / warmup                      step < warmup
//   end + (base - end) (1 + cos(pi t)) / 2          t = (step - warmup) /
//                                                       (total - warmup)
double LearningRate(const LrScheduleOptions& options, int64_t step);

}  // namespace fusor::runtime
