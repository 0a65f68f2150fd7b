#pragma once

// Several compiled variants of one model on the same weights and inputs, side
// by side in one process: how long each takes, and how far apart their numbers
// are. Several ranks compare alike, each with sessions of its own.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "ir/graph.h"
#include "ir/tensor_difference.h"
#include "runtime/backend.h"
#include "runtime/communicator.h"
#include "runtime/session.h"

namespace fusor::runtime {

struct Variant {
  std::string name;  // "fusion=off"
  Backend* backend = nullptr;
  BackendOptions device;
  codegen::CompileOptions compile;
  // The forward graph where it is not that of the others; null: it is.
  std::shared_ptr<const ir::Graph> model;
};

struct Comparison;

struct CompareOptions {
  uint64_t seed = 0;   // of the initial weights
  int warmup = 3;      // rounds before the measured ones
  int rounds = 20;     // each runs every variant once, in rotating order
  int profiles = 3;    // runs step by step, of which the median counts
  bool values = true;  // compare numbers
  // Asked after each round; true, on any rank, ends the measuring.
  std::function<bool()> stop;
  // Of several ranks, all of which call Compare with the same variants; null:
  // there is one.
  Communicator* communicator = nullptr;
  // Compiles, for as many ranks as the variants say, and runs nothing.
  bool plans_only = false;
  // Called when all variants are compiled, before anything runs.
  std::function<void(const Comparison&)> compiled;
};

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

// What a program reads besides its state, by input name: as Session::SetInput
// takes it. Inputs that a program does not have are ignored.
using InputBytes = std::map<std::string, std::vector<char>>;
void SetInputs(Session& session, int program, const InputBytes& inputs);

// `model` is the forward graph with output "loss". Throws what Session throws,
// naming the variant. Values of which each rank has a part (ir/shard.h) are put
// together and compared whole.
Comparison Compare(const ir::Graph& model, const std::vector<Variant>& variants,
                   const InputBytes& inputs, const CompareOptions& options);

std::string_view ValueKindName(ValueKind kind);  // "gradient"

}  // namespace fusor::runtime
