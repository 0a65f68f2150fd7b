// Replaces gradients by updates by the rule of the optimizer
// (optimizer_rules.cc), gathers sharded parameters and averages parameters.

#include <algorithm>
#include <string>
#include <unordered_set>

#include "ir/builder.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "ir/support/regex.h"
#include "passes/collectives/shard_layout.h"
#include "passes/passes.h"
#include "passes/training/optimizer_rules.h"
#include "passes/training/training_state.h"

namespace fusor::passes {
namespace {

using ir::Builder;
using ir::Graph;
using ir::Value;

// Builds the updates of one graph.
class Updates {
 public:
  Updates(Graph& graph, const OptimizerOptions& options, int ranks)
      : graph_(graph), ranks_(ranks), context_(graph, options, ranks) {
    if (options.ema_decay > 0) CountAverages();
  }

  void Add(const ParameterGradient& parameter) {
    Builder& builder = context_.builder();
    builder.Inherit(ir::LocationOf(*parameter.gradient));
    Value* target = parameter.target;
    const UpdatedParameter p{
        target, builder.Cast(parameter.gradient, target->type().dtype),
        graph_.input(parameter.input), graph_.inputs()[parameter.input].role};
    Value* updated = UpdateParameter(context_, p);
    Value* next = updated;
    if (p.is_part()) {
      context_.Replace(*target, updated);
      next = GatherParts(builder, updated, p.whole->type(), ranks_);
    }
    context_.Replace(*p.whole, next);
    if (first_average_ != nullptr) Average(p, updated);
  }

 private:
  void CountAverages() {
    Value* updates = context_.Count(ir::kAverages, "moving_averages");
    first_average_ = context_.builder().Compare("eq", updates, 0.0);
  }

  void Average(const UpdatedParameter& p, Value* updated) {
    Builder& builder = context_.builder();
    const double decay = context_.options().ema_decay;
    Value* state = context_.StateOf(p, ir::AverageName);
    Value* kept = builder.Times(state, decay);
    Value* average = builder.Plus(kept, builder.Times(updated, 1 - decay));
    Value* first = builder.BroadcastTo(first_average_, p.value->type().shape);
    context_.Replace(*state, builder.Select(first, updated, average));
  }

  Graph& graph_;
  const int ranks_;
  UpdateContext context_;
  Value* first_average_ = nullptr;  // true if there is no average yet
};

// Throws kUsage unless each group matches a parameter.
void CheckGroups(const Graph& graph, const OptimizerOptions& options) {
  for (const ParameterGroup& group : options.groups) {
    const Regex pattern(group.pattern, "parameter group");
    FUSOR_CHECK(std::any_of(graph.inputs().begin(), graph.inputs().end(),
                            [&](const ir::Input& input) {
                              return IsParameter(input.role) &&
                                     pattern.Found(input.value->name());
                            }),
                kUsage, "parameter group '{}': matches no parameter of {}",
                group.pattern, graph.name());
  }
}

}  // namespace

bool OptimizerUpdate(Graph& graph, PassContext& context) {
  const std::vector<ParameterGradient> parameters = CollectGradients(graph);
  if (parameters.empty()) return false;
  CheckGroups(graph, context.options().optimizer);
  Updates updates(graph, context.options().optimizer,
                  context.options().world_size);
  for (const ParameterGradient& parameter : parameters) updates.Add(parameter);
  if (!context.options().keep_gradients) {
    std::unordered_set<std::string> gradients;
    for (const ParameterGradient& parameter : parameters) {
      gradients.insert(graph.outputs()[parameter.output].name);
    }
    std::erase_if(graph.mutable_outputs(), [&](const ir::Output& output) {
      return gradients.contains(output.name);
    });
  }
  return true;
}

}  // namespace fusor::passes
