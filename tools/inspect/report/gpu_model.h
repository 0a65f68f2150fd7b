#pragma once

// Estimates the time of a step on a GPU, launch by launch, from the bytes that
// each kernel phase moves, its blocks and threads, and the registers of its
// machine code. Ranks changes of generated code without a GPU. Convolutions and
// products in generated kernels are assumed to reach several shares of the
// tensor cores' peak, and convolutions to write and read their workspaces once
// (ir::ExcessOf).

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "codegen/target_compiler.h"

namespace fusor::inspect {

// One launch of one phase of a generated kernel.
struct GpuLaunch {
  int step = 0;  // index in the plan
  int kernel = 0;
  int phase = 0;
  int64_t blocks = 0;
  int threads = 0;              // per block
  int registers = 0;            // per thread; 0 without machine code
  int stack_bytes = 0;          // spilled registers, per thread
  int blocks_at_once = 0;       // per multiprocessor
  double waves = 0;             // blocks / (blocks_at_once * multiprocessors)
  int64_t memory_bytes = 0;     // moved from or to memory
  int64_t cached_bytes = 0;     // served by the L2 cache
  int64_t bytes_in_flight = 0;  // requested by a multiprocessor's threads
  int64_t product_flops = 0;    // on tensor cores
  double us = 0;  // for its bytes, including the gap to the next launch
  // Time with enough blocks, threads and bytes in flight.
  double least_us = 0;
};

struct GpuModel {
  // Shares of the tensor cores' peak assumed for products.
  static constexpr std::array kTensorShares = {0.4, 0.5, 0.6};

  std::vector<GpuLaunch> launches;  // in issue order
  double kernels_ms = 0;            // of all launches
  // Launches with fewer blocks than the GPU has multiprocessors.
  double small_grids_ms = 0;
  int64_t small_grids = 0;
  double others_ms = 0;  // library calls except convolutions
  std::array<double, kTensorShares.size()> convolutions_ms{};  // calls
  // Time of generated kernels in which their bytes are moved but tensor cores
  // still multiply. kernels_ms does not include it.
  std::array<double, kTensorShares.size()> products_ms{};

  // Time of the whole step, for kTensorShares[share].
  double step_ms(size_t share) const {
    return kernels_ms + products_ms[share] + others_ms + convolutions_ms[share];
  }
};

// Models the plan's launches and library calls. REQUIRES: the target is a GPU.
// Without machine code in the plan, registers count as 0.
GpuModel ModelGpuStep(const codegen::Plan& plan,
                      const codegen::TargetCompiler& compiler);

// Returns a few lines for a terminal. `images`: per step.
std::string GpuModelText(const GpuModel& model, int64_t images);

// Returns the keys kernels_ms, small_grids_ms, small_grids, other_calls_ms,
// convolutions [{tensor_share, convolutions_ms, products_ms, step_ms,
// images_per_s}], launches [{kernel, name, phase, blocks, threads, registers,
// stack_bytes, waves, memory_bytes, cached_bytes, bytes_in_flight,
// product_flops, us}].
nlohmann::json GpuModelJson(const GpuModel& model, const codegen::Plan& plan,
                            int64_t images);

}  // namespace fusor::inspect
