#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace fusor::ir {

// What a pass may know about a device: plain data, from a description file, so
// that compiling for a device needs none.
struct Target {
  std::string name;   // "cpu-avx512"
  bool simt = false;  // GPU execution model
  // Of an NVIDIA GPU: 90 for sm_90; 0 elsewhere.
  int compute_capability = 0;
  int threads = 1;            // cores, or multiprocessors
  int64_t vector_bytes = 64;  // a CPU's register, a GPU's widest access
  int64_t l1_bytes = 0;       // of one core or multiprocessor
  int64_t l2_bytes = 0;       // of one core, or of the GPU
  int64_t l3_bytes = 0;       // shared by the cores; 0 where there is none
  // Bandwidth of all threads together, and what more threads cannot exceed.
  double memory_gb_per_s = 0;
  double memory_gb_per_s_limit = 0;
  double peak_gflops_f32 = 0;
  double peak_gflops_16 = 0;  // f16 or bf16, accumulated in f32
  // Share of the peak of the dtype at which Winograd convolutions multiply; 0
  // where there are none.
  double winograd_efficiency = 0;
  // Whether convolutions and matmuls run in that dtype. Where not, mixed
  // precision stores it and converts their operands to f32.
  bool bf16_matmul = false;
  bool f16_matmul = false;
  int64_t launch_overhead_ns = 0;  // from the end of a kernel to the next

  // Floats in a vector: the block of channels in blocked layouts, 16 or 8.
  // REQUIRES: !simt.
  int64_t channel_block() const;

  bool operator==(const Target&) const = default;
};

// LibraryCandidate::algorithm of what is no call, but a generated kernel.
inline constexpr std::string_view kGeneratedAlgorithm = "generated";

// One way a vendor library can run a node.
struct LibraryCandidate {
  std::string name;              // tells the candidates of a node apart
  std::string algorithm;         // "winograd", "direct"
  std::string implementation;    // the library's own name of the kernel
  std::vector<Layout> operands;  // layouts it wants, one an operand
  std::vector<Layout> results;
  int64_t workspace_bytes = 0;
  int64_t modelled_ns = 0;
};

// What a pass may ask a backend's compiler. It answers without a device.
class TargetQueries {
 public:
  virtual ~TargetQueries();
  virtual const Target& target() const = 0;
  // Best first; empty when no library does this node.
  virtual std::vector<LibraryCandidate> Candidates(const Node& node) const = 0;
};

// Reads a description (protobuf text format of ir/target/target.proto).
// `source` names it in errors; throws kGraph with line and column.
Target ParseTarget(std::string_view text, std::string_view source = "target");

// Names of the built-in descriptions, ir/target/targets/*.textproto; sorted.
std::vector<std::string> TargetNames();
// The built-in description of that name; throws kUsage with the nearest name.
Target FindTarget(std::string_view name);

// The same device with another number of threads: arithmetic in proportion,
// bandwidth likewise up to its limit. REQUIRES: threads >= 1.
Target WithThreads(Target target, int threads);

// The description of this machine's CPU by its instruction set, with as many
// threads as this process may use.
Target DefaultCpuTarget();

}  // namespace fusor::ir
