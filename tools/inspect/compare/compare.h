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
#include "runtime/backend/backend.h"
#include "runtime/backend/communicator.h"
#include "runtime/session.h"
#include "tools/inspect/compare/comparison.h"

namespace fusor::runtime {

struct Variant {
  std::string name;  // "fusion=off"
  Backend* backend = nullptr;
  BackendOptions device;
  codegen::CompileOptions compile;
  // The forward graph where it is not that of the others; null: it is.
  std::shared_ptr<const ir::Graph> model;
};

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

// What a program reads besides its state, by input name: as Session::SetInput
// takes it. Inputs that a program does not have are ignored.
using InputBytes = std::map<std::string, std::vector<char>>;
void SetInputs(Session& session, int program, const InputBytes& inputs);

// `model` is the forward graph with output "loss". Throws what Session throws,
// naming the variant. Values of which each rank has a part (ir/shard.h) are put
// together and compared whole.
Comparison Compare(const ir::Graph& model, const std::vector<Variant>& variants,
                   const InputBytes& inputs, const CompareOptions& options);

}  // namespace fusor::runtime
