#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "codegen/autotune/rewrite_selection.h"
#include "codegen/compiler.h"
#include "codegen/target_compiler.h"
#include "ir/graph.h"
#include "ir/target/autotune_results.h"
#include "passes/passes.h"
#include "passes/patterns/fuse_conv_norm.h"

namespace fusor::codegen {

// One way to run a convolution problem.
struct SearchCandidate {
  std::string problem;  // ir::ConvolutionProblem
  int layers = 0;       // convolutions of the step that are this problem
  ir::DType dtype = ir::DType::kF32;  // of its operands
  std::string name;                   // ir::LibraryCandidate::name
  LibraryCall call;                   // to be measured
  // Read and written for activations that it wants in another layout than the
  // problem's first candidate.
  double copied_bytes = 0;
  // Of the call; measured by the caller.
  double ms = 0;
};

using RewriteVerdicts = std::map<ir::AutotuneResults::Key, RewriteDecision>;

// What there is to measure about a model's step before choices can be made,
// and the choices once that is done.
class SearchSpace {
 public:
  // `compiler` must outlive this. Of options their passes count, without
  // choices.
  SearchSpace(const ir::Graph& forward, ProgramKind kind,
              const TargetCompiler& compiler, const CompileOptions& options);
  ~SearchSpace();

  // What mixed precision computes in; f32 where there is none, or the target
  // does not multiply in its dtype.
  ir::DType mixed() const { return mixed_; }

  // Every candidate of every distinct problem, in f32 and, where mixed
  // precision may decide, in its dtype - on GPUs in that alone, which is never
  // slower there -; those of one problem stand together.
  // Problems with a single candidate and nothing to decide are left out. Of a
  // training step also those of the convolutions that the target has for
  // FuseConvNorm, at whatever level, and that SpaceToDepth can make, in the
  // step's own dtypes.
  std::vector<SearchCandidate> Candidates() const;

  // Of the convolutions of these passes. Kernels move a byte in `ns_per_byte`.
  RewriteVerdicts Judge(const std::vector<SearchCandidate>& measured,
                        double ns_per_byte) const;

  // The fastest candidate for each problem and dtype, copies included, but
  // passes::kDeclined, or ConvRewrite::choice, where a verdict says so; then,
  // but for GPUs, the precisions, by passes::FasterInF32. A cast, and a copy,
  // takes `ns_per_byte`.
  ir::AutotuneResults Choose(const std::vector<SearchCandidate>& measured,
                             const RewriteVerdicts& verdicts,
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
  // What FuseConvNorm makes of the step, at two levels; the same with
  // SpaceToDepth, before and after.
  std::vector<std::unique_ptr<ir::Graph>> surveyed_;
  std::vector<passes::ConvRewrite> rewrites_;
};

}  // namespace fusor::codegen
