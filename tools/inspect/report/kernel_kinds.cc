#include "tools/inspect/report/kernel_kinds.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "ir/op.h"
#include "tools/inspect/report/graph_view.h"
#include "tools/inspect/report/step_phase.h"

namespace fusor::codegen {

std::vector<KernelCount> CountKernels(const ir::Graph& graph) {
  const auto phases = PhasesOf(graph);
  std::map<std::pair<StepPhase, bool>, KernelCount> counts;
  for (const auto& node : graph.nodes()) {
    if (node->body() == nullptr) continue;
    int64_t ops = 0;
    bool reduces = false;
    for (const auto& inner : node->body()->nodes()) {
      ops += IsCostly(*inner) ? 1 : 0;
      reduces |= inner->op().fusion == ir::FusionKind::kReduce;
    }
    const StepPhase phase = phases[node->position()];
    KernelCount& count = counts[{phase, reduces}];
    count.what = fmt::format("{}, {}", PhaseName(phase),
                             reduces ? "with reductions" : "elementwise");
    ++count.kernels;
    count.ops += ops;
    count.most_ops = std::max(count.most_ops, ops);
  }
  std::vector<KernelCount> list;
  for (auto& [key, count] : counts) list.push_back(std::move(count));
  return list;
}

}  // namespace fusor::codegen
