#pragma once

// Finds the fastest implementation of each convolution of a model.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "codegen/target_compiler.h"
#include "ir/graph.h"
#include "ir/target/autotune_results.h"
#include "runtime/backend/backend.h"

namespace fusor::codegen {
struct CompileOptions;
enum class ProgramKind;
}  // namespace fusor::codegen

namespace fusor::runtime {

struct TuneOptions {
  int rounds = 5;  // measured, after one that drops slow candidates
  // Called before each round with one line of progress text.
  std::function<void(const std::string&)> progress;
  std::function<bool()> stop;  // polled between measurements
};

// One measured implementation of a convolution problem.
struct TunedCandidate {
  std::string problem;  // ir::LibraryProblem
  int layers = 0;       // convolutions of the step with this problem
  ir::DType dtype = ir::DType::kF32;  // of the operands
  std::string name;                   // ir::LibraryCandidate::name
  std::string implementation;
  // Median over the rounds; if dropped after the first round, its time.
  double ms = 0;
  // Time of copies into the layouts of the problem's first candidate. Estimated
  // as bytes times the measured time per byte of a cast.
  double copies_ms = 0;
};

struct TuneResult {
  // Includes the origin, except origin.file.
  ir::AutotuneResults choices;
  // The measurements behind each choice, one line per choice.
  std::map<ir::AutotuneResults::Key, std::string> comments;
  std::vector<TunedCandidate> measured;
  // Candidates that lack memory or that the device rejects, one line each.
  std::vector<std::string> left_out;
  // Fused convolution rewrites that were considered, and those accepted.
  int rewrites = 0, rewrites_taken = 0;
  double seconds = 0;
  bool complete = true;  // false if stopped; then nothing is chosen
};

// Measures every candidate of the target for each distinct convolution problem
// of the step: forward, data gradient, weight gradient; in an evaluation
// forward only. Measures in f32 and, under mixed precision, also in its dtype.
//
// Each round launches every candidate once, or several times if a launch takes
// less than a few milliseconds. All candidates run in each round, so a
// temporary disturbance of the machine affects them alike. Launches cycle
// through buffers larger than the last-level cache. Drops candidates over 1.5x
// the best time after round one.
//
// Chooses the fastest candidate of each dtype, copies included, then the
// precision (codegen::SearchSpace). Also measures convolutions with fused
// normalisations and convolutions on blocks of pixels (passes::SpaceToDepth).
// These are rejected if they take longer than what they replace: other
// convolutions, and the additional bytes that kernels move, at the measured
// speed of a copy.
//
// Allocates device memory for the largest problem and frees it. A candidate
// that needs more than the free memory, or that the device rejects, is left
// out. Throws kOutOfMemory if not
// even the buffers of the copy fit.
TuneResult Tune(const ir::Graph& forward, codegen::ProgramKind kind,
                const codegen::TargetCompiler& compiler, Device& device,
                const codegen::CompileOptions& compile,
                const TuneOptions& options);

}  // namespace fusor::runtime
