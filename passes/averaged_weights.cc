#include "passes/averaged_weights.h"

#include "ir/training_names.h"

namespace fusor::passes {

void ReadAverages(ir::Graph& graph) {
  for (const ir::Input& input : graph.inputs()) {
    if (!IsParameter(input.role)) continue;
    graph.Rename(input.value.get(), ir::AverageName(input.value->name()));
  }
}

}  // namespace fusor::passes
