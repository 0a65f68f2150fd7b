// ZeRO, stage 1 (Rajbhandari et al., "ZeRO: Memory Optimizations Toward
// Training Trillion Parameter Models", 2020). A reduce-scatter gives each rank
// the sum of its shard of a gradient. The rank updates that shard of the
// parameter and alone stores its optimizer state. OptimizerUpdate gathers the
// shards.
//
// Shards are in row-major order until layouts are known; then
// ShardInPhysicalLayout switches to the physical order.

#include "ir/builder.h"
#include "ir/shard.h"
#include "ir/support/error.h"
#include "passes/collectives/collective.h"
#include "passes/passes.h"
#include "passes/training/training_state.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

// Smaller gradients are not sharded: that would save less than it costs.
constexpr int64_t kLeastElements = 4096;

void Shard(Graph& graph, const ParameterGradient& g, int64_t ranks) {
  Node* sum = g.gradient->producer();
  FUSOR_ASSERT(sum != nullptr && IsSumOverRanks(*sum),
               "gradient {} is not all-reduced", g.gradient->name());
  Node* scattered = graph.AddNode("reduce_scatter", {sum->input(0)},
                                  {{"parts", ranks}}, sum->location(), sum);
  const std::string name = g.gradient->name();
  graph.ReplaceAllUses(g.gradient, scattered->output());
  graph.Erase(sum);
  graph.Rename(scattered->output(), name);
  ShardInput(graph, *graph.input(g.input), ir::ShardName, ranks);
}

}  // namespace

bool ShardOptimizer(Graph& graph, PassContext& context) {
  const PassOptions& options = context.options();
  if (!options.shard_optimizer || options.world_size <= 1) return false;
  int64_t sharded = 0;
  for (const ParameterGradient& g : CollectGradients(graph)) {
    if (g.gradient->type().num_elements() < kLeastElements) continue;
    Shard(graph, g, options.world_size);
    ++sharded;
  }
  context.counters()["sharded_parameters"] += sharded;
  return sharded > 0;
}

}  // namespace fusor::passes
