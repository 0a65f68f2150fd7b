#include "ir/state_names.h"
#include "passes/training/training_state.h"

namespace fusor::passes {

void ReadAverages(ir::Graph& graph,
                  const std::function<bool(const std::string&)>& in_parts) {
  for (const ir::Input& input : graph.inputs()) {
    if (!IsParameter(input.role) || in_parts(input.value->name())) continue;
    graph.Rename(input.value.get(), ir::AverageName(input.value->name()));
  }
}

}  // namespace fusor::passes
