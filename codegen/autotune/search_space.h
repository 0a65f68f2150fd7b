#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "codegen/target_compiler.h"
#include "ir/graph.h"
#include "ir/target/autotune_results.h"
#include "passes/passes.h"
#include "passes/patterns/conv_rewrites.h"

namespace fusor::codegen {

// Returns the time in ns of a problem's fastest candidate; 0 if not measured.
using ProblemTimes = std::function<double(const std::string&, ir::DType)>;

// Whether an extended convolution pays off.
struct RewriteDecision {
  bool taken = false;
  // Time saved per step by all rewrites that create the convolution, including
  // rewrites that build on it. nullopt if a part was not measured.
  std::optional<double> saved_ns;
  std::string choice{};  // ConvRewrite::choice
};

// Returns a decision for each problem that `rewrites` create. The decision on a
// rewrite with a choice is stored under the problem that the choice applies to.
//
// Rewrites that replace the same problems by the same problems are taken or
// declined together. They are taken if the time of the convolutions, plus the
// time of the bytes that kernels move at `ns_per_byte`, decreases. A rewrite
// that others build on also counts their savings. If several rewrites exclude
// each other at one place, a later one counts only what it saves over an
// earlier one. Rewrites that were not measured are declined.
std::map<ir::AutotuneResults::Key, RewriteDecision> DecideRewrites(
    const std::vector<passes::ConvRewrite>& rewrites, const ProblemTimes& times,
    double ns_per_byte);

// One way to run a convolution problem.
struct SearchCandidate {
  std::string problem;                // ir::LibraryProblem
  int layers = 0;                     // convolutions per step with this problem
  ir::DType dtype = ir::DType::kF32;  // of its operands
  std::string name;                   // ir::LibraryCandidate::name
  LibraryCall call;                   // to measure
  std::optional<Kernel> kernel{};     // generated: measured instead of the call
  // Bytes read and written to convert activations, if the candidate requires
  // another layout for them than the problem's first candidate.
  double copied_bytes = 0;
  // Time of the call; measured by the caller.
  double ms = 0;
};

using RewriteDecisions = std::map<ir::AutotuneResults::Key, RewriteDecision>;

// The autotuning search space of a program. Lists the candidates to measure and
// makes choices from the measurements.
class SearchSpace {
 public:
  // `compiler` must outlive this. Uses only options.passes, without their
  // choices.
  SearchSpace(const ir::Graph& forward, ProgramKind kind,
              const TargetCompiler& compiler, const CompileOptions& options);
  ~SearchSpace();

  // Returns the dtype of mixed precision; f32 if it is off or the target has no
  // matmul in its dtype.
  ir::DType mixed() const { return mixed_; }

  // Returns all candidates of all distinct problems, grouped by problem. A
  // problem is measured in f32 and, if mixed precision applies to it, in the
  // mixed dtype. GPUs measure such a problem only in the mixed dtype, which is
  // never slower there. Omits problems with one candidate and no decision.
  //
  // For a training step, adds the convolutions that FuseConvNorm and
  // SpaceToDepth can create on this target, in the step's dtypes, whatever
  // PassOptions::norm_lowering is.
  std::vector<SearchCandidate> Candidates() const;

  // Returns the decisions on the convolutions that FuseConvNorm and
  // SpaceToDepth create. `ns_per_byte`: time in which a kernel moves one byte.
  RewriteDecisions SelectRewrites(const std::vector<SearchCandidate>& measured,
                                  double ns_per_byte) const;

  // Returns the fastest candidate for each problem and dtype, layout copies
  // included. Replaces it with passes::kDeclined if `decisions` rejects the
  // convolution, or with ConvRewrite::choice if it accepts a rewrite that has
  // one. Except on GPUs, also returns the precisions by passes::FasterInF32.
  // Casts and copies take `ns_per_byte`.
  ir::AutotuneResults Choose(const std::vector<SearchCandidate>& measured,
                             const RewriteDecisions& decisions,
                             double ns_per_byte) const;

 private:
  void Survey(passes::NormLowering level);
  void SurveyBlocks();
  bool IsCompared(const std::string& problem, ir::DType dtype) const;
  void AddRewritten(std::vector<SearchCandidate>& all) const;
  void AddCandidates(const ir::Node& node, ir::DType dtype, int layers,
                     std::vector<SearchCandidate>& all) const;
  bool IsMixed(const ir::Node& node) const;
  bool DecidesPrecision() const;

  const TargetCompiler& compiler_;
  std::unique_ptr<ir::Graph> graph_;  // before mixed precision
  std::unique_ptr<passes::PassContext> context_;
  ir::DType mixed_ = ir::DType::kF32;
  // The step after FuseConvNorm at two levels, then the step after SpaceToDepth
  // before and after FuseConvNorm.
  std::vector<std::unique_ptr<ir::Graph>> surveyed_;
  std::vector<passes::ConvRewrite> rewrites_;
};

}  // namespace fusor::codegen
