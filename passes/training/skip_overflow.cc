// The loss scale as in NVIDIA Apex (apex/amp/scaler.py) and torch.amp's
// GradScaler, with a floor and a ceiling, and without the host:
//
//   overflow:   scale = max(scale * backoff, floor), nothing else changes
//   otherwise:  after `growth_interval` consecutive steps
//               scale = min(scale * growth, ceiling)

#include "ir/builder.h"
#include "ir/shard.h"
#include "ir/state_names.h"
#include "passes/passes.h"
#include "passes/training/training_state.h"

namespace fusor::passes {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::InputRole;
using ir::Value;

constexpr char kSkippedUpdates[] = "loss_scale";

// Returns true for a sharded parameter: it follows its shards.
bool IsGathered(const Graph& graph, const ir::Output& output) {
  const Value& state = *graph.input(output.alias);
  return graph.FindInput(ir::ShardName(state.name())) != nullptr;
}

// Selects new state if all gradients are finite, otherwise the old state. Skips
// accumulated gradients, which no later step reads. Other readers of new
// optimizer state (the all-gather of a shard, and updates) then read the
// selected state. Results of updates are not kept after an overflow, so this
// changes no result, and a kernel stores everything that its later passes over
// the data need.
void KeepOldState(Graph& graph, Builder& b, Value* finite) {
  for (ir::Output& output : graph.mutable_outputs()) {
    if (output.alias < 0) continue;
    const InputRole role = graph.inputs()[output.alias].role;
    if (!IsState(role) || role == InputRole::kAccumulator) continue;
    if (IsGathered(graph, output)) continue;
    b.Inherit(ir::LocationOf(*output.value));
    Value* good = b.BroadcastTo(finite, output.value->type().shape);
    Value* updated = output.value;
    const std::vector<ir::Use> uses = updated->uses();
    output.value = b.Select(good, updated, graph.input(output.alias));
    if (role != InputRole::kOptimizerState) continue;
    for (const ir::Use& use : uses) {
      use.node->SetInput(static_cast<size_t>(use.operand), output.value);
    }
  }
}

void AdaptScale(Graph& graph, Builder& b, Value* finite,
                const LossScaleOptions& options) {
  b.Inherit(StepLocation(graph, kSkippedUpdates));
  const auto counter = [&](const char* name) {
    return TrainingInput(graph, {DType::kI32, {}, {}},
                         InputRole::kOptimizerState, name);
  };
  const auto update = [&](Value* state, Value* good, Value* bad) {
    graph.AddOutput(b.Select(finite, good, bad), state->name(), state->index());
  };
  Value* none = b.Scalar(DType::kI32, 0);
  Value* scale = LossScale(graph, options);
  Value* good_steps = counter(ir::kGoodSteps);
  Value* steps = b.Plus(good_steps, 1);
  Value* grows =
      b.Compare("ge", steps, static_cast<double>(options.growth_interval));
  Value* grown = b.Times(scale, options.growth_factor);
  grown = b.Minimum(grown, b.ScalarLike(scale, options.ceiling));
  Value* shrunk = b.Times(scale, options.backoff_factor);
  shrunk = b.Maximum(shrunk, b.ScalarLike(scale, options.floor));
  update(scale, b.Select(grows, grown, scale), shrunk);
  update(good_steps, b.Select(grows, none, steps), none);
  Value* overflows = counter(ir::kOverflows);
  update(overflows, overflows, b.Plus(overflows, 1));
  Value* in_row = counter(ir::kOverflowsInRow);
  update(in_row, none, b.Plus(in_row, 1));
}

}  // namespace

bool SkipOverflow(Graph& graph, PassContext& context) {
  const LossScaleOptions& options = context.options().loss_scale;
  const int output = graph.FindOutput(ir::kFinite);
  if (!options.dynamic || output < 0) return false;
  Builder builder(graph);
  Value* finite = graph.outputs()[output].value;
  KeepOldState(graph, builder, finite);
  AdaptScale(graph, builder, finite, options);
  graph.SortTopologically();
  return true;
}

}  // namespace fusor::passes
