#pragma once

// A model of a step's time on a GPU, launch by launch: from the bytes that each
// phase of a kernel moves, the blocks and threads it runs on and the registers
// that its machine code takes. It tells changes of generated code apart before
// a GPU is there to measure them; it knows nothing of what convolutions reach,
// so these are given at several shares of the tensor cores' peak.

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "codegen/target_compiler.h"

namespace fusor::codegen {

// One launch of one phase of a generated kernel.
struct GpuLaunch {
  int step = 0;  // in the plan
  int kernel = 0;
  int phase = 0;
  int64_t blocks = 0;
  int threads = 0;              // of a block
  int registers = 0;            // of a thread; 0 where there is no machine code
  int stack_bytes = 0;          // of a thread: spilled registers
  int blocks_at_once = 0;       // on a multiprocessor
  double waves = 0;             // blocks / (blocks_at_once * multiprocessors)
  int64_t memory_bytes = 0;     // that cross memory
  int64_t cached_bytes = 0;     // that the L2 cache has
  int64_t bytes_in_flight = 0;  // that a multiprocessor's threads ask for
  double us = 0;                // with the gap to the next launch
  // What a launch of enough blocks, threads and bytes in flight would take.
  double least_us = 0;
};

struct GpuModel {
  // Shares of the tensor cores' peak that convolutions may reach.
  static constexpr std::array kTensorShares = {0.4, 0.5, 0.6};

  std::vector<GpuLaunch> launches;  // in issue order
  double kernels_ms = 0;            // of all launches
  // Of launches with fewer blocks than there are multiprocessors.
  double small_grids_ms = 0;
  int64_t small_grids = 0;
  double others_ms = 0;  // library calls but for convolutions
  std::array<double, kTensorShares.size()> convolutions_ms{};

  // Of the whole step.
  double step_ms(size_t share) const {
    return kernels_ms + others_ms + convolutions_ms[share];
  }
};

// REQUIRES: the target is a GPU. Without machine code in the plan registers
// count as 0.
GpuModel ModelGpuStep(const Plan& plan, const TargetCompiler& compiler);

// A few lines for a terminal. `images`: in a step.
std::string GpuModelText(const GpuModel& model, int64_t images);

// Keys: kernels_ms, small_grids_ms, small_grids, other_calls_ms, convolutions
// [{tensor_share, convolutions_ms, step_ms, images_per_s}], launches [{kernel,
// name, phase, blocks, threads, registers, stack_bytes, waves, memory_bytes,
// cached_bytes, bytes_in_flight, us}].
nlohmann::json GpuModelJson(const GpuModel& model, const Plan& plan,
                            int64_t images);

}  // namespace fusor::codegen
