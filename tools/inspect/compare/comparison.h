#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/compiler.h"
#include "ir/graph.h"
#include "runtime/session.h"
#include "tools/inspect/compare/tensor_difference.h"

namespace fusor::runtime {

enum class ValueKind {
  kOutput,        // loss and other results of the timed program
  kState,         // next parameters, optimizer state, statistics, of the same
  kGradient,      // of each parameter
  kIntermediate,  // operands and results of library calls
};

struct ValueDifference {
  ValueKind kind = ValueKind::kOutput;
  std::string name;  // "loss", "layer1.0.conv1.weight"
  ir::TensorDifference difference;
};

struct VariantRun {
  std::string name;
  // Program 0 is the timed one; program 1, where numbers are compared, has its
  // gradients as outputs. Null where plans are all that there is.
  std::unique_ptr<Session> session;
  std::unique_ptr<codegen::TargetCompiler> planner;  // where there is none
  codegen::CompiledProgram planned;                  // by it
  // What a sum over ranks takes, as the variant's policy reckons.
  passes::CollectiveCost network;
  std::vector<double> step_ms;     // by round
  std::vector<double> profile_ms;  // by step of program 0
  double loss = 0;                 // of the first step, over all ranks
  // Against the first variant, in order of kind, then of the model; empty for
  // the first.
  std::vector<ValueDifference> differences;
  // Kernels that run edited code in program 0 and their own in program 1.
  std::vector<std::string> unedited;
  // Library calls of the first variant that this one has none for, and of
  // this one that the first has none for: not compared.
  int64_t unmatched_calls = 0;
  // Outputs and state that one of the two programs alone has.
  int64_t unmatched_outputs = 0;
  // Of several ranks: how many of the values differ on each, this one's as in
  // `differences`.
  std::vector<int64_t> different_on;

  // Of the timed program.
  const codegen::Plan& plan() const;
  const ir::Graph& graph() const;
  const codegen::CompileReport& report() const;
  const codegen::TargetCompiler& compiler() const;
};

struct Comparison {
  int ranks = 1;  // that ran, or were planned for
  std::vector<VariantRun> variants;
};

std::string_view ValueKindName(ValueKind kind);  // "gradient"

}  // namespace fusor::runtime
