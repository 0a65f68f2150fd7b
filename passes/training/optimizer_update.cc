// torch.optim.SGD (torch/optim/sgd.py, _single_tensor_sgd) with dampening 0:
//
//   g = g + wd * p            unless decoupled
//   v = mu * v + g            torch's first step sets v = g; v starts at 0
//   g = g + mu * v            with Nesterov, else g = v
//   p = p * (1 - lr * wd)     if decoupled, as in torch.optim.AdamW
//   p = p - lr * g
//
// LARS as in MLPerf's ResNet reference (mlperf/training, lars_optimizer.py),
// where the momentum includes the learning rate. Biases and normalisations have
// trust 1:
//
//   trust = coefficient * |p| / (|g| + wd * |p|)
//   v = mu * v + lr * trust * (g + wd * p)
//   p = p - v

#include <string>
#include <unordered_set>

#include "ir/builder.h"
#include "ir/shard.h"
#include "ir/state_names.h"
#include "passes/collectives/cross_rank_reduce.h"
#include "passes/collectives/shard_layout.h"
#include "passes/passes.h"
#include "passes/training/training_state.h"

namespace fusor::passes {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::InputRole;
using ir::Value;

constexpr char kAverages[] = "moving_averages";

// Builds the updates of one graph.
class Updates {
 public:
  Updates(Graph& graph, const OptimizerOptions& options, int ranks)
      : graph_(graph), options_(options), ranks_(ranks), builder_(graph) {
    lr_ = TrainingInput(graph_, {DType::kF32, {}, {}},
                        InputRole::kHyperParameter, ir::kLearningRate);
    if (options_.ema_decay > 0) CountAverages();
  }

  void Add(const ParameterGradient& parameter) {
    Value* p = parameter.target;
    builder_.Inherit(ir::LocationOf(*parameter.gradient));
    Value* g = builder_.Cast(parameter.gradient, p->type().dtype);
    const InputRole role = graph_.inputs()[parameter.input].role;
    Value& whole = *graph_.input(parameter.input);
    Value* updated = options_.kind == OptimizerKind::kLars
                         ? Lars(p, g, role, whole)
                         : Sgd(p, g, role);
    Value* next = updated;
    if (p != &whole) {
      graph_.AddOutput(updated, p->name(), p->index());
      next = GatherParts(builder_, updated, whole.type(), ranks_);
    }
    graph_.AddOutput(next, whole.name(), parameter.input);
    if (options_.ema_decay > 0) Average(*p, updated);
  }

 private:
  Value* Sgd(Value* p, Value* g, InputRole role) {
    const double decay = WeightDecay(role);
    const bool decoupled = options_.decoupled_weight_decay;
    if (decay != 0 && !decoupled) {
      g = builder_.Plus(g, builder_.Times(p, decay));
    }
    g = Accelerate(*p, g);
    Value* lr = Spread(lr_, *p);
    Value* kept = p;
    if (decay != 0 && decoupled) {
      Value* factor =
          builder_.Minus(builder_.ScalarLike(lr, 1), builder_.Times(lr, decay));
      kept = builder_.Times(p, factor);
    }
    return builder_.Minus(kept, builder_.Times(lr, g));
  }

  Value* Lars(Value* p, Value* g, InputRole role, Value& whole) {
    const double decay = WeightDecay(role);
    Value* rate = lr_;
    if (role == InputRole::kWeight) {
      rate = builder_.Times(rate, Trust(whole, g, decay, p != &whole));
    }
    if (decay != 0) g = builder_.Plus(g, builder_.Times(p, decay));
    return builder_.Minus(p,
                          Accelerate(*p, builder_.Times(Spread(rate, *p), g)));
  }

  // Returns a layer's trust ratio; 1 if the weight or its gradient is zero. All
  // ranks have the whole weight, so its norm needs no collective. Each rank may
  // have only a shard of the gradient.
  Value* Trust(Value& p, Value* g, double decay, bool part) {
    Value* weight = builder_.Sqrt(SumOfSquares(builder_, &p));
    Value* gradient = SumOfSquares(builder_, g);
    if (part) gradient = SumOverRanks(builder_, gradient, ranks_);
    gradient = builder_.Sqrt(gradient);
    Value* share = builder_.Times(weight, options_.lars_coefficient);
    Value* whole = builder_.Plus(gradient, builder_.Times(weight, decay));
    Value* ratio = builder_.Divide(share, whole);
    Value* both = builder_.Compare("gt", weight, 0.0);
    both = builder_.And(both, builder_.Compare("gt", gradient, 0.0));
    return builder_.Select(both, ratio, builder_.ScalarLike(ratio, 1));
  }

  double WeightDecay(InputRole role) const {
    return role == InputRole::kWeight ? options_.weight_decay
                                      : options_.norm_weight_decay;
  }

  // Broadcasts a scalar to the parameter's shape.
  Value* Spread(Value* scalar, const Value& p) {
    return builder_.BroadcastTo(builder_.Cast(scalar, p.type().dtype),
                                p.type().shape);
  }

  Value* Accelerate(const Value& p, Value* g) {
    if (options_.momentum == 0) return g;
    Value* state = StateOf(p, ir::MomentumName);
    Value* v = builder_.Plus(builder_.Times(state, options_.momentum), g);
    graph_.AddOutput(v, state->name(), state->index());
    return options_.nesterov
               ? builder_.Plus(g, builder_.Times(v, options_.momentum))
               : v;
  }

  // Returns state for a parameter, or for this rank's shard of one, of its
  // size.
  Value* StateOf(const Value& p, std::string (*name)(std::string_view)) {
    const ir::Attrs& attrs = graph_.inputs()[p.index()].attrs;
    if (ir::IsShard(attrs)) {
      return ShardInput(graph_, *graph_.FindInput(attrs.String(ir::kShardOf)),
                        name, ranks_);
    }
    return TrainingInput(graph_, p.type(), InputRole::kOptimizerState,
                         name(p.name()));
  }

  void CountAverages() {
    builder_.Inherit(StepLocation(graph_, kAverages));
    Value* updates = TrainingInput(graph_, {DType::kI32, {}, {}},
                                   InputRole::kOptimizerState, ir::kAverages);
    first_average_ = builder_.Compare("eq", updates, 0.0);
    graph_.AddOutput(builder_.Plus(updates, 1), updates->name(),
                     updates->index());
  }

  void Average(const Value& p, Value* updated) {
    Value* state = StateOf(p, ir::AverageName);
    Value* kept = builder_.Times(state, options_.ema_decay);
    Value* average =
        builder_.Plus(kept, builder_.Times(updated, 1 - options_.ema_decay));
    Value* first = builder_.BroadcastTo(first_average_, p.type().shape);
    graph_.AddOutput(builder_.Select(first, updated, average), state->name(),
                     state->index());
  }

  Graph& graph_;
  const OptimizerOptions& options_;
  const int ranks_;
  Builder builder_;
  Value* lr_ = nullptr;
  Value* first_average_ = nullptr;
};

}  // namespace

bool OptimizerUpdate(Graph& graph, PassContext& context) {
  const std::vector<ParameterGradient> parameters = CollectGradients(graph);
  if (parameters.empty()) return false;
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
