#pragma once

// Finds the failing pass and rewrite of a program, and a minimal reproducer.
//
// The pipeline runs once and saves a copy of the graph after each pass. A
// binary search over these copies finds the first one with the symptom. A
// second binary search, over the fuel of that pass, finds the rewrite. The
// input graph of the pass is then reduced while the rewrites still cause the
// symptom. Passes that cannot be disabled are therefore found too.

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

namespace fusor::inspect {

// The symptom to search for.
enum class Symptom {
  kDifference,  // an output differs from the unoptimised graph's, interpreted
                // exactly, by more than the tolerance
  kNonFinite,   // an output is not finite, interpreted with rounding, but the
                // unoptimised graph's is
  kCrash,  // a pass ends the process, or throws kInternal; each candidate runs
           // in a forked child
};

struct BisectOptions {
  Symptom symptom = Symptom::kDifference;
  double tolerance = 1e-6;  // on max abs error / max magnitude
  passes::PassOptions passes;
  bool reduce = true;
  // Returns input values for the graph at any stage, equal for equal names.
  std::function<std::vector<ir::Tensor>(const ir::Graph&)> inputs;
  // Called with one line per search phase.
  std::function<void(const std::string&)> progress;
};

struct BisectResult {
  std::string pass;
  int index = -1;  // in passes::Pipeline()
  // Number of the rewrite, from 1, counted like fuel: over all runs of passes
  // with this name in the pipeline. 0: no counted rewrite is the cause.
  int64_t application = 0;
  std::string subject;  // the rewritten value
  ir::Location location;
  std::string symptom;  // one line
  // The reduced input of the pass, and the first rewrite on it that causes the
  // symptom (0 as above).
  TestCase reduced;
  int64_t reduced_application = 0;
};

// Returns nullopt if no pass shows the symptom. `forward` as for Compile.
// Throws what the passes throw, except kInternal with kCrash.
std::optional<BisectResult> BisectPasses(const ir::Graph& forward,
                                         codegen::ProgramKind kind,
                                         const ir::TargetQueries& target,
                                         const BisectOptions& options);

// Fuel per pass name, for oracles that only run whole compilations. For the
// first n rewrites of the pipeline, each pass gets as much as it has among
// them.
using Fuel = std::map<std::string, int64_t>;
struct FuelResult {
  int64_t application = 0;  // in its pass, from 1; 0: fails without rewrites
  passes::Application rewrite;
  Fuel fuel;  // fails; passes with one unit less for rewrite.pass
};

// Returns nullopt if the program is not bad with all of `rewrites`, which are
// in pipeline order. Passes without a rewrite in the list get fuel 0.
std::optional<FuelResult> BisectFuel(
    const std::vector<passes::Application>& rewrites,
    const std::function<bool(const Fuel&)>& bad);

// Returns the rewrites of a whole compilation, in order.
std::vector<passes::Application> RewritesOf(const ir::Graph& forward,
                                            codegen::ProgramKind kind,
                                            const ir::TargetQueries& target,
                                            const passes::PassOptions& options);

// Compares the common outputs of both graphs; `a` is the reference. Returns the
// worst as "output NAME: ...", or "" if it is within the tolerance.
std::string DescribeDifference(const ir::Graph& a,
                               const std::vector<ir::Tensor>& of_a,
                               const ir::Graph& b,
                               const std::vector<ir::Tensor>& of_b,
                               double tolerance);

}  // namespace fusor::inspect
