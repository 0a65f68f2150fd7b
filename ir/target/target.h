#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace fusor::ir {

// Device properties that passes may use. Plain data from a description file, so
// that compiling for a device does not need the device.
struct Target {
  std::string name;   // "cpu-avx512"
  bool simt = false;  // GPU execution model
  // NVIDIA GPUs: 90 for sm_90; 0 for other devices.
  int compute_capability = 0;
  int threads = 1;            // cores, or multiprocessors
  int64_t vector_bytes = 64;  // CPU: a register; GPU: the widest access
  int64_t l1_bytes = 0;       // per core or multiprocessor
  int64_t l2_bytes = 0;       // per core, or of the GPU
  int64_t l3_bytes = 0;       // shared by the cores; 0: none
  // Total bandwidth of all threads, and its limit for any number of threads.
  double memory_gb_per_s = 0;
  double memory_gb_per_s_limit = 0;
  double peak_gflops_f32 = 0;
  double peak_gflops_16 = 0;  // f16 or bf16, accumulated in f32
  // Fraction of the dtype's peak that Winograd convolutions reach; 0: none.
  double winograd_efficiency = 0;
  // Whether convolutions and matmuls run in that dtype. Otherwise mixed
  // precision only stores it and converts their operands to f32.
  bool bf16_matmul = false;
  bool f16_matmul = false;
  // CPU: whether bf16 matmuls run on AMX's matrix registers, for which
  // activations have channels last.
  bool amx = false;
  int64_t launch_overhead_ns = 0;  // between consecutive kernels

  // Returns whether groups of four warps multiply matrices (wgmma), which only
  // GPUs of sm_90a do.
  bool has_wgmma() const { return compute_capability == 90; }
  // Returns the floats per vector, 16 or 8: the channel block of blocked
  // layouts. REQUIRES: !simt.
  int64_t channel_block() const;

  bool operator==(const Target&) const = default;
};

// LibraryCandidate::algorithm of a generated kernel.
inline constexpr std::string_view kGeneratedAlgorithm = "generated";

// One way a vendor library can run a node.
struct LibraryCandidate {
  std::string name;              // unique among the node's candidates
  std::string algorithm;         // "winograd", "direct"
  std::string implementation;    // the library's name of the kernel
  std::vector<Layout> operands;  // required layouts, one per operand
  std::vector<Layout> results;
  int64_t workspace_bytes = 0;
  int64_t modelled_ns = 0;
};

// A pass's queries to a backend's compiler. They need no device.
class TargetQueries {
 public:
  virtual ~TargetQueries();
  virtual const Target& target() const = 0;
  // Returns candidates, best first; empty if no library supports the node.
  virtual std::vector<LibraryCandidate> Candidates(const Node& node) const = 0;
};

// Reads a description (protobuf text format of ir/target/target.proto).
// `source` names it in errors; throws kGraph with line and column.
Target ParseTarget(std::string_view text, std::string_view source = "target");

// Names of the built-in descriptions, ir/target/targets/*.textproto; sorted.
std::vector<std::string> TargetNames();
// Throws kUsage with the nearest name if unknown.
Target FindTarget(std::string_view name);

// Returns the device with another number of threads: arithmetic scales
// linearly, bandwidth linearly up to its limit. REQUIRES: threads >= 1.
Target WithThreads(Target target, int threads);

// Returns the description of this machine's CPU by its instruction set, with as
// many threads as this process may use.
Target DefaultCpuTarget();

}  // namespace fusor::ir
