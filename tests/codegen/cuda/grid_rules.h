#pragma once

// Rules for the grid of a launch, and reasons for which it may break them.

#include <cstdint>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "tools/inspect/report/gpu_model.h"

namespace fusor::test {

struct BrokenGridRule {
  // "few blocks": fewer blocks than multiprocessors load more than 200 KB.
  // "waves": the last wave of blocks is small: 1.05 to 1.6 or 2.05 to 2.6
  // waves.
  const char* rule;
  // Why the launch may break it; nullptr: it may not.
  const char* reason;
};

// Returns the bytes that a phase loads from memory and caches.
int64_t LoadedBytes(const codegen::Kernel& kernel, const codegen::Phase& phase);

std::vector<BrokenGridRule> BrokenGridRules(const inspect::GpuLaunch& launch,
                                            int64_t loaded_bytes,
                                            int64_t multiprocessors);

}  // namespace fusor::test
