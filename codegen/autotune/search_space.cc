#include "codegen/autotune/search_space.h"

#include <algorithm>
#include <set>
#include <utility>

#include "codegen/lower/lower.h"
#include "ir/library_fusion.h"
#include "ir/target/conv_problem.h"
#include "passes/library/conv_rewriter.h"
#include "passes/patterns/conv_rewrites.h"
#include "passes/pipeline.h"
#include "passes/precision/conv_precision.h"

namespace fusor::codegen {
namespace {

using ir::AutotuneResults;
using ir::DType;
using ir::Node;

constexpr double kMeasureMargin = 0.97;  // medians may be off by 3%

LibraryCall CallOf(const Node& node, const ir::LibraryCandidate& candidate) {
  LibraryCall call = codegen::CallOf(node);
  call.attrs.Set("algorithm", candidate.algorithm);
  for (size_t i = 0; i < call.operands.size(); ++i) {
    call.operands[i].layout = candidate.operands[i];
  }
  for (size_t i = 0; i < call.results.size(); ++i) {
    call.results[i].layout = candidate.results[i];
  }
  return call;
}

// Returns the kernel of a generated candidate for a matmul, a convolution, or a
// library fusion of one.
std::optional<Kernel> KernelOf(const LibraryCall& call,
                               const ir::Target& target) {
  if (call.attrs.String("algorithm") != ir::kGeneratedAlgorithm) return {};
  const auto lower = [&](const ir::Graph& body) {
    return LowerTensorCore(body, target, /*eager=*/false).kernel;
  };
  if (call.body != nullptr) return lower(*call.body);
  return lower(
      *ir::OneOpGraph(call.op, call.attrs, call.operands, call.results));
}

constexpr std::string_view kBlocksPass = "space_to_depth";
constexpr std::string_view kRewritingPass = "fuse_conv_norm";

bool Runs(std::string_view pass, const passes::PassOptions& options) {
  const auto entries = passes::Pipeline();
  return std::any_of(entries.begin(), entries.end(), [&](const auto& entry) {
    return entry.name == pass && passes::IsEnabled(entry, options);
  });
}

// Returns the passes of Stage::kOptimize between `first` and `end`, both
// excluded. An empty `first` starts at the first pass.
std::vector<std::string> PassesBetween(std::string_view first,
                                       std::string_view end) {
  std::vector<std::string> names;
  bool inside = first.empty();
  for (const passes::PassEntry& entry : passes::Pipeline()) {
    if (entry.stage != passes::Stage::kOptimize) continue;
    if (entry.name == end) break;
    if (inside) names.emplace_back(entry.name);
    inside |= entry.name == first;
  }
  return names;
}

// Returns the least time of each problem in ns. Stores the candidate in
// `choices` if that is not null.
std::map<AutotuneResults::Key, double> BestTimes(
    const std::vector<SearchCandidate>& measured, double ns_per_byte,
    AutotuneResults* choices) {
  std::map<AutotuneResults::Key, double> best;
  for (const SearchCandidate& c : measured) {
    const double ns = c.ms * 1e6 + c.copied_bytes * ns_per_byte;
    const AutotuneResults::Key key{c.problem, c.dtype};
    const auto [it, first] = best.emplace(key, ns);
    if (!first && ns >= it->second) continue;
    it->second = ns;
    if (choices != nullptr) choices->candidates[key] = c.name;
  }
  return best;
}

double TimeIn(const std::map<AutotuneResults::Key, double>& times,
              const std::string& problem, DType dtype) {
  const auto it = times.find({problem, dtype});
  return it == times.end() ? 0 : it->second;
}

bool AreSame(const passes::ConvRewrite& a, const passes::ConvRewrite& b) {
  return a.place == b.place && a.dtype == b.dtype &&
         std::equal(a.parts.begin(), a.parts.end(), b.parts.begin(),
                    b.parts.end(), [](const auto& p, const auto& q) {
                      return p.before == q.before && p.after == q.after;
                    });
}

bool BuildsOn(const passes::ConvRewrite& rewrite,
              const passes::ConvRewrite& base) {
  return std::any_of(
      rewrite.parts.begin(), rewrite.parts.end(), [&](const auto& part) {
        return std::any_of(
            base.parts.begin(), base.parts.end(),
            [&](const auto& b) { return b.after == part.before; });
      });
}

double CopiedBytes(const Node& node, const ir::LibraryCandidate& candidate,
                   const ir::LibraryCandidate& usual) {
  double bytes = 0;
  const auto add = [&](const ir::TensorType& type, const ir::Layout& a,
                       const ir::Layout& b) {
    if (a != b) bytes += 2 * static_cast<double>(type.num_bytes());
  };
  add(node.input(0)->type(), candidate.operands[0], usual.operands[0]);
  if (ir::ConvolutionOf(node)->kind == ir::ConvKind::kGradWeight) {
    add(node.input(1)->type(), candidate.operands[1], usual.operands[1]);
  } else {
    add(node.output()->type(), candidate.results[0], usual.results[0]);
  }
  return bytes;
}

}  // namespace

SearchSpace::SearchSpace(const ir::Graph& forward, ProgramKind kind,
                         const TargetCompiler& compiler,
                         const CompileOptions& options)
    : compiler_(compiler), graph_(forward.Clone()) {
  passes::PassOptions pass_options = options.passes;
  pass_options.choices = {};
  context_ =
      std::make_unique<passes::PassContext>(compiler, std::move(pass_options));
  RunPipeline(*graph_, *context_, passes::Stage::kForward);
  if (kind != ProgramKind::kEval) {
    RunPipeline(*graph_, *context_, passes::Stage::kTraining);
  }
  const DType dtype = context_->options().precision.dtype;
  if (dtype != DType::kF32 && passes::HasMatmul(compiler.target(), dtype)) {
    mixed_ = dtype;
  }
  if (kind == ProgramKind::kEval) return;
  // FuseConvNorm accumulates a gradient in a convolution only if that does not
  // compute a normalisation's gradient. Two levels find both rewrites.
  Survey(passes::NormLowering::kStatistics);
  Survey(passes::NormLowering::kJoins);
  SurveyBlocks();
}

void SearchSpace::Survey(passes::NormLowering level) {
  if (!Runs(kRewritingPass, context_->options())) return;
  std::unique_ptr<ir::Graph> graph = graph_->Clone();
  passes::PassContext context(compiler_, context_->options());
  RunPasses(*graph, context, PassesBetween("", kBlocksPass));
  RunPasses(*graph, context, PassesBetween(kBlocksPass, kRewritingPass));
  for (passes::ConvRewrite& rewrite :
       passes::SurveyConvNorm(*graph, context, level)) {
    const bool known =
        std::any_of(rewrites_.begin(), rewrites_.end(),
                    [&](const auto& r) { return AreSame(r, rewrite); });
    if (!known) rewrites_.push_back(std::move(rewrite));
  }
  surveyed_.push_back(std::move(graph));
}

// Surveys convolutions of images in other forms (SpaceToDepth) and their
// statistics. Runs last, because these rewrites count only what they save over
// the statistics of the convolutions that they replace.
void SearchSpace::SurveyBlocks() {
  const passes::PassOptions& options = context_->options();
  if (!Runs(kBlocksPass, options) || !Runs(kRewritingPass, options)) return;
  std::unique_ptr<ir::Graph> graph = graph_->Clone();
  passes::PassContext context(compiler_, options);
  RunPasses(*graph, context, PassesBetween("", kBlocksPass));
  const std::vector<passes::ConvRewrite> made =
      SurveySpaceToDepth(*graph, context);
  if (made.empty()) return;
  rewrites_.insert(rewrites_.end(), made.begin(), made.end());
  RunPasses(*graph, context, PassesBetween(kBlocksPass, kRewritingPass));
  surveyed_.push_back(graph->Clone());
  for (passes::ConvRewrite& rewrite : passes::SurveyConvNorm(
           *graph, context, passes::NormLowering::kStatistics)) {
    const bool builds =
        std::any_of(made.begin(), made.end(),
                    [&](const auto& base) { return BuildsOn(rewrite, base); });
    if (!builds) continue;
    rewrite.place += " of blocks";  // not exclusive with its base rewrite
    rewrites_.push_back(std::move(rewrite));
  }
  surveyed_.push_back(std::move(graph));
}

SearchSpace::~SearchSpace() = default;

bool SearchSpace::IsMixed(const Node& node) const {
  return mixed_ != DType::kF32 && RuleOf(node, context_->options().precision) ==
                                      ir::PrecisionRule::kAllow;
}

bool SearchSpace::DecidesPrecision() const {
  return mixed_ != DType::kF32 && !compiler_.target().simt;
}

std::vector<SearchCandidate> SearchSpace::Candidates() const {
  std::map<std::string, int> layers;
  std::vector<const Node*> firsts;
  for (const auto& node : graph_->nodes()) {
    const std::string problem = ir::LibraryProblem(*node);
    if (problem.empty() || node->input(0)->type().dtype != DType::kF32) {
      continue;
    }
    // On a CPU, fuse_contraction decides about matmuls.
    const bool decided =
        node->kind() == ir::OpKind::kMatmul && !compiler_.target().simt;
    if (decided) continue;
    if (++layers[problem] == 1) firsts.push_back(node.get());
  }
  std::vector<SearchCandidate> all;
  for (const Node* node : firsts) {
    const int count = layers[ir::LibraryProblem(*node)];
    const bool mixed = IsMixed(*node);
    if (!mixed || DecidesPrecision()) {
      AddCandidates(*node, DType::kF32, count, all);
    }
    if (mixed) AddCandidates(*node, mixed_, count, all);
  }
  AddRewritten(all);
  return all;
}

// Returns whether the time of a plain convolution is compared with rewrites.
bool SearchSpace::IsCompared(const std::string& problem, DType dtype) const {
  return std::any_of(
      rewrites_.begin(), rewrites_.end(), [&](const auto& rewrite) {
        return rewrite.dtype == dtype &&
               std::any_of(
                   rewrite.parts.begin(), rewrite.parts.end(),
                   [&](const auto& part) { return part.before == problem; });
      });
}

void SearchSpace::AddRewritten(std::vector<SearchCandidate>& all) const {
  std::map<AutotuneResults::Key, int> layers;
  for (const passes::ConvRewrite& rewrite : rewrites_) {
    for (const auto& part : rewrite.parts) {
      ++layers[{part.after, rewrite.dtype}];
    }
  }
  std::set<AutotuneResults::Key> seen;
  for (const auto& graph : surveyed_) {
    for (const auto& node : graph->nodes()) {
      if (!ir::ConvolutionOf(*node).has_value()) continue;
      const AutotuneResults::Key key{ir::LibraryProblem(*node),
                                     node->input(0)->type().dtype};
      const auto it = layers.find(key);
      if (it == layers.end() || !seen.insert(key).second) continue;
      for (const auto& candidate : compiler_.Candidates(*node)) {
        const LibraryCall call = CallOf(*node, candidate);
        all.push_back({.problem = key.first,
                       .layers = it->second,
                       .dtype = key.second,
                       .name = candidate.name,
                       .call = call,
                       .kernel = KernelOf(call, compiler_.target())});
      }
    }
  }
}

void SearchSpace::AddCandidates(const Node& node, DType dtype, int layers,
                                std::vector<SearchCandidate>& all) const {
  ir::Graph scratch("scratch");
  const Node& retyped = passes::AddRetyped(scratch, node, dtype, *context_);
  auto candidates = compiler_.Candidates(retyped);
  if (!context_->options().winograd) {
    std::erase_if(candidates,
                  [](const auto& c) { return c.algorithm == "winograd"; });
  }
  if (candidates.empty() ||
      candidates[0].algorithm == ir::kGeneratedAlgorithm) {
    return;
  }
  const bool decides = DecidesPrecision() && IsMixed(node);
  if (candidates.size() == 1 && !decides &&
      !IsCompared(ir::LibraryProblem(node), dtype)) {
    return;
  }
  for (const ir::LibraryCandidate& candidate : candidates) {
    const LibraryCall call = CallOf(retyped, candidate);
    all.push_back(
        {.problem = ir::LibraryProblem(node),
         .layers = layers,
         .dtype = dtype,
         .name = candidate.name,
         .call = call,
         .kernel = KernelOf(call, compiler_.target()),
         .copied_bytes = CopiedBytes(retyped, candidate, candidates.front())});
  }
}

RewriteDecisions SearchSpace::SelectRewrites(
    const std::vector<SearchCandidate>& measured, double ns_per_byte) const {
  const auto best = BestTimes(measured, ns_per_byte, nullptr);
  const ProblemTimes times = [&](const std::string& problem, DType dtype) {
    return TimeIn(best, problem, dtype);
  };
  return DecideRewrites(rewrites_, times, ns_per_byte);
}

AutotuneResults SearchSpace::Choose(
    const std::vector<SearchCandidate>& measured,
    const RewriteDecisions& decisions, double ns_per_byte) const {
  AutotuneResults choices;
  const auto best = BestTimes(measured, ns_per_byte, &choices);
  for (const auto& [key, decision] : decisions) {
    if (decision.choice.empty()) {
      if (!decision.taken) choices.candidates[key] = passes::kDeclined;
    } else if (decision.taken) {
      choices.candidates[key] = decision.choice;
    }
  }
  if (!DecidesPrecision()) return choices;
  passes::WideRule rule = passes::ModelledRule(*context_);
  rule.times = [&](const Node& node) {
    const std::string problem = ir::LibraryProblem(node);
    return passes::PrecisionTimes{TimeIn(best, problem, DType::kF32),
                                  TimeIn(best, problem, mixed_)};
  };
  rule.ns_per_byte = ns_per_byte;
  rule.margin = kMeasureMargin;
  const std::set<std::string> wide = FasterInF32(*graph_, rule);
  for (const auto& [key, ns] : best) {
    if (key.second != mixed_ || decisions.contains(key)) continue;
    choices.precisions[key] = wide.contains(key.first) ? DType::kF32 : mixed_;
  }
  return choices;
}

}  // namespace fusor::codegen
