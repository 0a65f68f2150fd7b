#pragma once

// Measures what a model's convolutions run fastest as on a device.

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
  int rounds = 5;  // measured ones, after one that finds out what is too slow
  // Told before each round, a line for people.
  std::function<void(const std::string&)> progress;
  std::function<bool()> stop;  // asked between measurements
};

// One way to run a convolution problem, measured.
struct TunedCandidate {
  std::string problem;  // ir::ConvolutionProblem
  int layers = 0;       // convolutions of the step that are this problem
  ir::DType dtype = ir::DType::kF32;  // of its operands
  std::string name;                   // ir::LibraryCandidate::name
  std::string implementation;
  // Median over the rounds; of the first alone where that was too slow.
  double ms = 0;
  // Of copies into the layouts that the problem's first candidate has; modelled
  // by bytes at the speed of a cast that was measured.
  double copies_ms = 0;
};

struct TuneResult {
  // With origin, but for its file.
  ir::AutotuneResults choices;
  // What was measured, a line for each choice.
  std::map<ir::AutotuneResults::Key, std::string> comments;
  std::vector<TunedCandidate> measured;
  std::vector<std::string> left_out;  // for lack of memory, a line for each
  // Convolutions that do more than a plain one, and those that were chosen.
  int rewrites = 0, rewrites_taken = 0;
  double seconds = 0;
  bool complete = true;  // false when it was stopped; nothing is chosen then
};

// Measures each distinct convolution problem of the step - forward, data
// gradient, weight gradient; of an evaluation forward alone - by every
// candidate of the target, in f32 and under mixed precision in its dtype too.
//
// One launch, or several where it takes less than a few milliseconds, per
// candidate and round, all candidates one round after the other, so that what
// disturbs the machine for a while disturbs them alike. Operands are taken in
// turn from more memory than the last cache holds. A candidate that takes half
// as long again as the problem's best in the first round is not measured again.
//
// The fastest candidate of each dtype is chosen, copies included; then the
// precision (codegen::SearchSpace). Convolutions that compute more than that,
// for normalisations beside them, are measured likewise, and declined where
// they take longer than what they replace: other convolutions, and the kernels
// that move more bytes for it, at the speed of the copy that was measured. So
// are those on blocks of pixels (passes::SpaceToDepth).
//
// Takes device memory for the largest problem, and frees it. A candidate that
// needs more than is free is left out. Throws kOutOfMemory when there is not
// that much for the copy either.
TuneResult Tune(const ir::Graph& forward, codegen::ProgramKind kind,
                const codegen::TargetCompiler& compiler, Device& device,
                const codegen::CompileOptions& compile,
                const TuneOptions& options);

}  // namespace fusor::runtime
