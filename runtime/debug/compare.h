#pragma once

// Several compiled variants of one model on the same weights and inputs, side
// by side in one process: how long each takes, and how far apart their numbers
// are.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "ir/graph.h"
#include "ir/tensor_difference.h"
#include "runtime/backend.h"
#include "runtime/session.h"

namespace fusor::runtime {

struct Variant {
  std::string name;  // "fusion=off"
  Backend* backend = nullptr;
  BackendOptions device;
  codegen::CompileOptions compile;
};

struct CompareOptions {
  uint64_t seed = 0;   // of the initial weights
  int warmup = 3;      // rounds before the measured ones
  int rounds = 20;     // each runs every variant once, in rotating order
  int profiles = 3;    // runs step by step, of which the median counts
  bool values = true;  // compare numbers
  // Asked after each round; true ends the measuring.
  std::function<bool()> stop;
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
  // gradients as outputs.
  std::unique_ptr<Session> session;
  std::vector<double> step_ms;     // by round
  std::vector<double> profile_ms;  // by step of program 0
  double loss = 0;                 // of the first step
  // Against the first variant, in order of kind, then of the model; empty for
  // the first.
  std::vector<ValueDifference> differences;
  // Kernels that run edited code in program 0 and their own in program 1.
  std::vector<std::string> unedited;
  // Library calls of the first variant that this one has none for, and of
  // this one that the first has none for: not compared.
  int64_t unmatched_calls = 0;
};

struct Comparison {
  std::vector<VariantRun> variants;
};

// What a program reads besides its state, by input name: as Session::SetInput
// takes it. Inputs that a program does not have are ignored.
using InputBytes = std::map<std::string, std::vector<char>>;
void SetInputs(Session& session, int program, const InputBytes& inputs);

// `model` is the forward graph with output "loss". Throws what Session throws,
// naming the variant.
Comparison Compare(const ir::Graph& model, const std::vector<Variant>& variants,
                   const InputBytes& inputs, const CompareOptions& options);

std::string_view ValueKindName(ValueKind kind);  // "gradient"

}  // namespace fusor::runtime
