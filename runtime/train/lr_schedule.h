#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fusor::runtime {

enum class LrScheduleKind { kConstant, kStep, kLinear, kCosine, kPolynomial };

// Parses a schedule name. Throws kUsage with the known names.
LrScheduleKind ParseLrSchedule(const std::string& name);
std::vector<std::string> LrScheduleNames();

// Times below are counted in rate updates, i.e. in steps, or in epochs if
// `steps_per_update` is the number of steps per epoch.
struct LrScheduleOptions {
  LrScheduleKind kind = LrScheduleKind::kConstant;
  double base = 0.1;                // peak learning rate
  int64_t steps_per_update = 1;     // steps between two rate updates
  int64_t warmup = 0;               // linear from base / warmup to base
  int64_t total = 1;                // update at which the rate reaches `end`
  double end = 0;                   // linear, cosine, polynomial
  double power = 2;                 // polynomial
  std::vector<int64_t> milestones;  // step: updates at which the rate drops
  double gamma = 0.1;               // step: by this factor
  // linear, cosine, polynomial: length of the first cycle, after which the rate
  // is `base` again; 0: one curve to `total`. Each cycle is `cycle_factor`
  // times as long as the one before (Loshchilov and Hutter 2017).
  int64_t first_cycle = 0;
  int64_t cycle_factor = 1;
};

// Returns the learning rate of a step, counted from 0. With u = step /
// steps_per_update and t = (u - warmup) / (total - warmup), at most 1, or with
// cycles the share of the current one:
//   base (u + 1) / warmup                      u < warmup
//   base gamma^(milestones at or before u)     step
//   end + (base - end) (1 - t)                 linear
//   end + (base - end) (1 + cos(pi t)) / 2     cosine
//   end + (base - end) (1 - t)^power           polynomial
// With one update per epoch these are the rules of NVIDIA's ResNet-50 script.
double LearningRate(const LrScheduleOptions& options, int64_t step);

}  // namespace fusor::runtime
