#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/compiler.h"
#include "ir/graph.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "tools/inspect/compare/tensor_difference.h"

namespace fusor::inspect {

enum class ValueKind {
  kOutput,  // loss and other results of the timed program
  kState,   // next parameters, optimizer state, statistics of the timed program
  kGradient,      // per parameter
  kIntermediate,  // operands and results of library calls
};

struct ValueDifference {
  ValueKind kind = ValueKind::kOutput;
  std::string name;  // "loss", "layer1.0.conv1.weight"
  TensorDifference difference;
};

struct VariantRun {
  std::string name;
  // Null if nothing runs (plans_only).
  std::unique_ptr<runtime::Session> session;
  // The program whose steps are timed. Null if nothing runs.
  runtime::Program* timed = nullptr;
  // Has the gradients as outputs. Null if numbers are not compared.
  runtime::Program* numbers = nullptr;
  std::unique_ptr<codegen::TargetCompiler> planner;  // if `session` is null
  codegen::CompiledProgram planned;                  // by `planner`
  // Estimated cost of an all-reduce under the variant's policy.
  passes::CollectiveCost network;
  std::vector<double> step_ms;     // per round
  std::vector<double> profile_ms;  // per step of the timed program's plan
  double loss = 0;                 // of the first step, mean over all ranks
  // Against the first variant, by kind, then model order. Empty for the first.
  std::vector<ValueDifference> differences;
  // Kernels with substituted code in `timed` but not in `numbers`.
  std::vector<std::string> unedited;
  // Library calls, or their values, without a counterpart; not compared.
  int64_t unmatched_calls = 0;
  // Outputs and state without a counterpart in the other program.
  int64_t unmatched_outputs = 0;
  // Number of differing values per rank. Empty with one rank.
  std::vector<int64_t> different_on;

  // Accessors for the timed program.
  const codegen::Plan& plan() const;
  const ir::Graph& graph() const;
  const codegen::CompileReport& report() const;
  const codegen::TargetCompiler& compiler() const;
};

struct Comparison {
  int ranks = 1;  // that ran, or that were planned for
  std::vector<VariantRun> variants;
};

std::string_view ValueKindName(ValueKind kind);  // "gradient"

struct CallDifferences {
  std::vector<ValueDifference> values;
  int64_t unmatched = 0;  // calls without a counterpart, values of unlike types
};

// Runs both programs once, interleaved step by step, and compares the operands
// and results of library calls. Convolutions, matmuls and poolings occur in
// every variant at the same model location, whatever is fused between them.
// Skips parameters and inputs. A value that several calls read is compared
// once, at its first reader.
//
// `scale`: loss scale of `a` / loss scale of `b`. Gradients carry the loss
// scale until the update, so those of `b` are multiplied by `scale` first.
CallDifferences StepTogether(runtime::Program& a, runtime::Program& b,
                             double scale);

struct OutputDifferences {
  std::vector<ValueDifference> values;  // outputs first, then state
  int64_t unmatched = 0;  // without a counterpart of the same type
};

// Compares one program of each session after a run: the outputs and the next
// state or, with `gradients`, only the gradients among the outputs. Skips
// cached weight copies. Compares sharded parameters as whole parameters, under
// the parameter's name. With shards, all ranks must call this.
OutputDifferences CompareOutputs(runtime::Session& a,
                                 runtime::Program& program_a,
                                 runtime::Session& b,
                                 runtime::Program& program_b, bool gradients);

}  // namespace fusor::inspect
