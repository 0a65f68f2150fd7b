#pragma once

// Which pass, and which of its rewrites, breaks a program; and the least graph
// on which it still does.
//
// The pipeline runs once, with a copy of the graph kept after each pass. A
// binary search over these copies finds the first that an oracle calls bad, a
// second one, over the fuel of that pass alone, the rewrite; then the graph
// that the pass was given is reduced for as long as the rewrites still break
// it. So passes that cannot be left out are found as well.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "ir/target/target.h"
#include "passes/pipeline.h"
#include "tools/inspect/bisect/reduce_case.h"

namespace fusor::codegen {

// What makes a graph bad.
enum class Symptom {
  kDifference,  // an output differs from the unoptimised graph's, exactly
                // interpreted, by more than the tolerance
  kNonFinite,   // an output is not finite, interpreted with rounding, though
                // the unoptimised graph's is
  kCrash,       // a pass ends the process, or throws kInternal; each candidate
                // runs in a forked child
};

struct BisectOptions {
  Symptom symptom = Symptom::kDifference;
  double tolerance = 1e-6;  // of the largest error over the largest magnitude
  passes::PassOptions passes;
  bool reduce = true;
  // Values for the inputs of the graph at any stage, the same ones by name.
  std::function<std::vector<ir::Tensor>(const ir::Graph&)> inputs;
  // Told, in a line, what is being done.
  std::function<void(const std::string&)> progress;
};

struct BisectResult {
  std::string pass;
  int index = -1;  // in passes::Pipeline()
  // The rewrite, from 1, among those that passes of this name make in the whole
  // pipeline, as fuel counts them; 0: none of those that are counted.
  int64_t application = 0;
  std::string subject;  // the value that the rewrite is about
  ir::Location location;
  std::string symptom;  // what is wrong, in one line
  // What the pass was given, reduced, and the first of its rewrites there that
  // breaks it (0 as above).
  TestCase reduced;
  int64_t reduced_application = 0;
};

// Nullopt when no pass shows the symptom. `forward` as for Compile. Throws what
// the passes throw but, with kCrash, for kInternal.
std::optional<BisectResult> BisectPasses(const ir::Graph& forward,
                                         ProgramKind kind,
                                         const ir::TargetQueries& target,
                                         const BisectOptions& options);

// For an oracle that only runs whole compilations: how much fuel each pass may
// have. The first rewrites of the pipeline, however many, are what passes make
// with as much fuel as there are rewrites of each among them.
using Fuel = std::map<std::string, int64_t>;
struct FuelResult {
  int64_t application =
      0;  // among those of its pass, from 1; 0: none is needed
  passes::Application rewrite;
  Fuel fuel;  // with which it is bad; one unit less of rewrite.pass: not
};

// Nullopt when the program is not bad with all of `rewrites`, those that the
// passes make, in order. Every other pass that takes fuel gets none.
std::optional<FuelResult> BisectFuel(
    const std::vector<passes::Application>& rewrites,
    const std::function<bool(const Fuel&)>& bad);

// The rewrites that passes make on the way to the optimised program.
std::vector<passes::Application> RewritesOf(const ir::Graph& forward,
                                            ProgramKind kind,
                                            const ir::TargetQueries& target,
                                            const passes::PassOptions& options);

// The difference between the outputs that both graphs have: the worst, when it
// is above the tolerance, as "output NAME: ..."; else empty. `a` is right.
std::string DescribeDifference(const ir::Graph& a,
                               const std::vector<ir::Tensor>& of_a,
                               const ir::Graph& b,
                               const std::vector<ir::Tensor>& of_b,
                               double tolerance);

}  // namespace fusor::codegen
