#include "codegen/plan/live_ranges.h"

namespace fusor::codegen {

std::vector<LiveRange> LiveRanges(const Plan& plan) {
  std::vector<LiveRange> lives(plan.buffers.size());
  const auto touch = [&](int buffer, int step) {
    LiveRange& life = lives[buffer];
    if (life.first < 0) life.first = step;
    life.last = step;
  };
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    for (int arg : plan.steps[s].args) {
      touch(arg, static_cast<int>(s));
      for (int member : plan.buffers[arg].members) {
        touch(member, static_cast<int>(s));
      }
    }
  }
  return lives;
}

}  // namespace fusor::codegen
