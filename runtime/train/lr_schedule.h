#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fusor::runtime {

enum class LrScheduleKind { kConstant, kStep, kLinear, kCosine, kPolynomial };

// Throws kUsage with the known names.
LrScheduleKind ParseLrSchedule(const std::string& name);
std::vector<std::string> LrScheduleNames();

// Times below are counted in updates of the rate: in steps, or, where
// `steps_per_update` is that of an epoch, in epochs.
struct LrScheduleOptions {
  LrScheduleKind kind = LrScheduleKind::kConstant;
  double base = 0.1;                // peak learning rate
  int64_t steps_per_update = 1;     // the rate stays for so many steps
  int64_t warmup = 0;               // linear from base / warmup to base
  int64_t total = 1;                // where it reaches `end`
  double end = 0;                   // linear, cosine, polynomial
  double power = 2;                 // polynomial
  std::vector<int64_t> milestones;  // step: where the rate drops
  double gamma = 0.1;               // step: by this factor
};

// The learning rate of a step, counted from 0. With u = step / steps_per_update
// and t = (u - warmup) / (total - warmup), at most 1:
//   base (u + 1) / warmup                      u < warmup
//   base gamma^(milestones at or before u)     step
//   end + (base - end) (1 - t)                 linear
//   end + (base - end) (1 + cos(pi t)) / 2     cosine
//   end + (base - end) (1 - t)^power           polynomial
// With one update an epoch these are the policies of NVIDIA's ResNet-50 script.
double LearningRate(const LrScheduleOptions& options, int64_t step);

}  // namespace fusor::runtime
