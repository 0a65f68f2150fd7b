#include "tests/testing/cuda_planner.h"

#include <algorithm>

#include "codegen/autotune/search_space.h"
#include "ir/library_fusion.h"
#include "ir/op.h"
#include "runtime/backend/backend_loader.h"

namespace fusor::test {

std::vector<ir::LibraryCandidate> ChannelsLastCompiler::Candidates(
    const ir::Node& node) const {
  const ir::Node& op = ir::LibraryOp(node);
  const bool biased = op.op_name() == "conv2d" && op.num_inputs() == 3;
  if (biased && !ir::EpilogueOf(node).has_value()) return {};
  std::vector<ir::LibraryCandidate> candidates = FakeCompiler::Candidates(node);
  const bool copies = node.op_name() == "copy";
  if (copies && ir::IsView(node)) return {};
  if (copies || node.attrs().Has("window")) {
    candidates.at(0).algorithm = ir::kGeneratedAlgorithm;
  }
  if (node.op_name() == "space_to_depth") {
    candidates.at(0).algorithm = ir::kGeneratedAlgorithm;
    candidates.at(0).results.at(0) = ir::ParseLayout("acdb");
    return candidates;
  }
  const auto lay_out = [](const ir::Value* value, ir::Layout& layout) {
    if (value->type().rank() == 4) layout = ir::ParseLayout("acdb");
  };
  for (ir::LibraryCandidate& candidate : candidates) {
    for (size_t i = 0; i < node.num_inputs(); ++i) {
      lay_out(node.input(i), candidate.operands[i]);
    }
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      lay_out(node.output(i), candidate.results[i]);
    }
  }
  return candidates;
}

std::unique_ptr<codegen::TargetCompiler> CudaPlanner(
    const std::string& target) {
  const std::vector<std::string> backends = runtime::AvailableBackends();
  if (std::find(backends.begin(), backends.end(), "cuda") == backends.end()) {
    return std::make_unique<ChannelsLastCompiler>(target);
  }
  return runtime::LoadBackend("cuda").CreateCompiler(target, {});
}

ir::AutotuneResults ChooseGenerated(const ir::Graph& forward,
                                    const codegen::TargetCompiler& compiler,
                                    const codegen::CompileOptions& options) {
  const codegen::SearchSpace space(forward, codegen::ProgramKind::kTrain,
                                   compiler, options);
  ir::AutotuneResults results;
  results.origin.target = compiler.target().name;
  results.origin.library = compiler.LibraryVersion();
  results.origin.threads = compiler.target().threads;
  for (const codegen::SearchCandidate& candidate : space.Candidates()) {
    if (!candidate.kernel.has_value()) continue;
    results.candidates[{candidate.problem, candidate.dtype}] = candidate.name;
  }
  return results;
}

}  // namespace fusor::test
