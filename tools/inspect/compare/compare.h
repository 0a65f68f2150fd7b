#pragma once

// Compares compiled variants of one model with equal weights and inputs in one
// process: step times and numerical differences. With several ranks, each rank
// has its own sessions.

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "ir/graph.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/communicator.h"
#include "runtime/program.h"
#include "tools/inspect/compare/compare_metrics.h"
#include "tools/inspect/compare/comparison.h"

namespace fusor::inspect {

struct Variant {
  std::string name;  // "fusion=off"
  runtime::Backend* backend = nullptr;
  runtime::BackendOptions device;
  codegen::CompileOptions compile;
  // The forward graph of this variant; null: the one passed to Compare.
  std::shared_ptr<const ir::Graph> model;
};

struct CompareOptions {
  uint64_t seed = 0;   // of the initial weights
  int warmup = 3;      // rounds before the measured ones
  int rounds = 20;     // each runs every variant once, in rotating order
  int profiles = 3;    // step-by-step runs; the median counts
  bool values = true;  // compare numbers
  // Called after each round. If it returns true on any rank, measuring ends.
  std::function<bool()> stop;
  // All its ranks call Compare with the same variants. Null: one rank.
  runtime::Communicator* communicator = nullptr;
  // Only compiles, for the number of ranks in the variants. Runs nothing.
  bool plans_only = false;
  // Called once all variants are compiled, before anything runs.
  std::function<void(const Comparison&)> compiled;
};

// Program inputs except state, by name, in the format of Program::SetInput.
// SetInputs ignores names that the program does not have.
using InputBytes = std::map<std::string, std::vector<char>>;
void SetInputs(runtime::Program& program, const InputBytes& inputs,
               int64_t slot = 0);

// Compiles and runs the variants. `model` is the forward graph with output
// "loss". Throws what Session throws, with the variant's name, and kUsage for
// less than two variants. Gathers sharded values (ir/shard.h).
Comparison Compare(const ir::Graph& model, const std::vector<Variant>& variants,
                   const InputBytes& inputs, const CompareOptions& options);

// Returns an aligned table for a terminal, at most 100 columns wide unless
// names are too long. `top`: number of worst differences, and of rejected
// fusions, listed per variant.
std::string ComparisonText(const Comparison& comparison,
                           const std::vector<VariantMetrics>& facts,
                           size_t top);

// Returns stable keys; see README "JSON".
nlohmann::json ComparisonJson(const Comparison& comparison,
                              const std::vector<VariantMetrics>& facts);

// Returns the comparison as one self-contained HTML page: key numbers, time and
// bytes per op class, kernels per model part, memory over the schedule,
// differences. `subject`: what was compared, on which device.
std::string ComparisonPage(const Comparison& comparison,
                           const std::vector<VariantMetrics>& facts,
                           const std::string& subject);

}  // namespace fusor::inspect
