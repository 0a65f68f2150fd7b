#include "codegen/tune_study.h"

#include <utility>

#include "ir/convolution.h"
#include "passes/pipeline.h"
#include "passes/wide_convolutions.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::LibraryChoices;
using ir::Node;

constexpr double kMeasureMargin = 0.97;  // what medians may be wrong by

LibraryCall CallOf(const Node& node, const ir::LibraryCandidate& candidate) {
  LibraryCall call{.op = std::string(node.op_name()), .attrs = node.attrs()};
  call.attrs.Set("algorithm", candidate.algorithm);
  for (size_t i = 0; i < node.num_inputs(); ++i) {
    call.operands.push_back(node.input(i)->type());
    call.operands.back().layout = candidate.operands[i];
  }
  call.results.push_back(node.output()->type());
  call.results.back().layout = candidate.results[0];
  return call;
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

TuneStudy::TuneStudy(const ir::Graph& forward, ProgramKind kind,
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
}

TuneStudy::~TuneStudy() = default;

bool TuneStudy::IsMixed(const Node& node) const {
  return mixed_ != DType::kF32 && RuleOf(node, context_->options().precision) ==
                                      ir::PrecisionRule::kAllow;
}

std::vector<StudiedCandidate> TuneStudy::Candidates() const {
  std::map<std::string, int> layers;
  std::vector<const Node*> firsts;
  for (const auto& node : graph_->nodes()) {
    const std::string problem = ir::ConvolutionProblem(*node);
    if (problem.empty() || node->input(0)->type().dtype != DType::kF32) {
      continue;
    }
    if (++layers[problem] == 1) firsts.push_back(node.get());
  }
  std::vector<StudiedCandidate> all;
  for (const Node* node : firsts) {
    const int count = layers[ir::ConvolutionProblem(*node)];
    AddCandidates(*node, DType::kF32, count, all);
    if (IsMixed(*node)) AddCandidates(*node, mixed_, count, all);
  }
  return all;
}

void TuneStudy::AddCandidates(const Node& node, DType dtype, int layers,
                              std::vector<StudiedCandidate>& all) const {
  ir::Graph scratch("scratch");
  const Node& retyped = passes::AddRetyped(scratch, node, dtype, compiler_);
  auto candidates = compiler_.Candidates(retyped);
  if (!context_->options().winograd) {
    std::erase_if(candidates,
                  [](const auto& c) { return c.algorithm == "winograd"; });
  }
  if (candidates.empty() || (candidates.size() == 1 && !IsMixed(node))) return;
  for (const ir::LibraryCandidate& candidate : candidates) {
    all.push_back(
        {.problem = ir::ConvolutionProblem(node),
         .layers = layers,
         .dtype = dtype,
         .name = candidate.name,
         .call = CallOf(retyped, candidate),
         .copied_bytes = CopiedBytes(retyped, candidate, candidates.front())});
  }
}

LibraryChoices TuneStudy::Choose(const std::vector<StudiedCandidate>& measured,
                                 double ns_per_byte) const {
  LibraryChoices choices;
  std::map<LibraryChoices::Key, double> best;  // ns
  for (const StudiedCandidate& c : measured) {
    const double ns = c.ms * 1e6 + c.copied_bytes * ns_per_byte;
    const LibraryChoices::Key key{c.problem, c.dtype};
    const auto [it, first] = best.emplace(key, ns);
    if (!first && ns >= it->second) continue;
    it->second = ns;
    choices.candidates[key] = c.name;
  }
  if (mixed_ == DType::kF32) return choices;
  passes::WideRule rule = passes::ModelledRule(*context_);
  const auto find = [&](const std::string& problem, DType dtype) {
    const auto it = best.find({problem, dtype});
    return it == best.end() ? 0 : it->second;
  };
  rule.times = [&](const Node& node) {
    const std::string problem = ir::ConvolutionProblem(node);
    return passes::PrecisionTimes{find(problem, DType::kF32),
                                  find(problem, mixed_)};
  };
  rule.ns_per_byte = ns_per_byte;
  rule.margin = kMeasureMargin;
  const std::set<std::string> wide = FasterInF32(*graph_, rule);
  for (const auto& [key, ns] : best) {
    if (key.second != mixed_) continue;
    choices.precisions[key] = wide.contains(key.first) ? DType::kF32 : mixed_;
  }
  return choices;
}

}  // namespace fusor::codegen
