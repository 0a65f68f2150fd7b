#include "passes/training/optimizer_rules.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "ir/shard.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "passes/collectives/cross_rank_reduce.h"
#include "passes/training/training_state.h"

namespace fusor::passes {
namespace {

using ir::Builder;
using ir::DType;
using ir::InputRole;
using ir::Value;

// --- What several rules do ---------------------------------------------------

// Returns x + wd * p.
Value* Decayed(UpdateContext& c, const UpdatedParameter& p, Value* x) {
  const double decay = c.WeightDecay(p);
  if (decay == 0) return x;
  return c.builder().Plus(x, c.builder().Times(p.value, decay));
}

// Returns mu * v + x, the next value of the momentum v, or with Nesterov
// momentum x + mu * that. Returns x without momentum.
Value* Accelerate(UpdateContext& c, const UpdatedParameter& p, Value* x) {
  const double momentum = c.options().momentum;
  if (momentum == 0) return x;
  Builder& b = c.builder();
  Value* state = c.StateOf(p, ir::MomentumName);
  Value* v = b.Plus(b.Times(state, momentum), x);
  c.Replace(*state, v);
  return c.options().nesterov ? b.Plus(x, b.Times(v, momentum)) : v;
}

// Returns beta * m + (1 - beta) * x, the next value of the moving average m.
Value* Average(UpdateContext& c, const UpdatedParameter& p,
               std::string (*name)(std::string_view), double beta, Value* x,
               double initial = 0) {
  Builder& b = c.builder();
  Value* state = c.StateOf(p, name, initial);
  Value* kept = b.Times(state, beta);
  Value* next = b.Plus(kept, b.Times(x, 1 - beta));
  c.Replace(*state, next);
  return next;
}

// Returns the average of the squared gradient.
Value* SecondMoment(UpdateContext& c, const UpdatedParameter& p, double beta,
                    Value* g, double initial = 0) {
  return Average(c, p, ir::SecondMomentName, beta, c.builder().Times(g, g),
                 initial);
}

// Returns the step of Adam, to be multiplied by the learning rate:
//
//   m = beta1 * m + (1 - beta1) * g
//   v = beta2 * v + (1 - beta2) * g * g
//   step = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
Value* AdamStep(UpdateContext& c, const UpdatedParameter& p, Value* g) {
  Builder& b = c.builder();
  const OptimizerOptions& o = c.options();
  Value* m = Average(c, p, ir::FirstMomentName, o.beta1, g);
  Value* v = SecondMoment(c, p, o.beta2, g);
  m = b.Times(m, c.Spread(c.first_correction(), p));
  Value* root = b.Sqrt(v);
  v = b.Times(root, c.Spread(c.second_correction(), p));
  return b.Divide(m, b.Plus(v, o.eps));
}

// Returns rate * x. Multiplies the tensor by the learning rate, not a scalar:
// scalars that read the same value would be fused, and with them the updates
// that need them.
Value* Scaled(UpdateContext& c, const UpdatedParameter& p, Value* rate,
              Value* x) {
  return c.builder().Times(c.Spread(rate, p), x);
}

// Returns lr * x, with the learning rate of the parameter's group.
Value* ScaledByLr(UpdateContext& c, const UpdatedParameter& p, Value* x) {
  const double scale = c.LrScale(p);
  return Scaled(c, p, c.lr(), scale == 1 ? x : c.builder().Times(x, scale));
}

// Returns p - lr * step.
Value* Descend(UpdateContext& c, const UpdatedParameter& p, Value* step) {
  return c.builder().Minus(p.value, ScaledByLr(c, p, step));
}

// Returns a layer's trust ratio; 1 if one of the norms is 0.
Value* Trust(Builder& b, Value* weight, Value* step, Value* ratio) {
  Value* both = b.Compare("gt", weight, 0.0);
  both = b.And(both, b.Compare("gt", step, 0.0));
  return b.Select(both, ratio, b.ScalarLike(ratio, 1));
}

// All ranks have the whole weight, so its norm needs no collective.
Value* WeightNorm(UpdateContext& c, const UpdatedParameter& p) {
  return c.Norm(p.whole, /*part=*/false);
}

// --- Rules -------------------------------------------------------------------

// torch.optim.SGD (torch/optim/sgd.py, _single_tensor_sgd) with dampening 0:
//
//   g = g + wd * p            unless decoupled
//   v = mu * v + g            torch's first step sets v = g; v starts at 0
//   g = g + mu * v            with Nesterov, else g = v
//   g = g + wd * p            if decoupled, as in torch.optim.AdamW
//   p = p - lr * g
Value* Sgd(UpdateContext& c, const UpdatedParameter& p) {
  if (c.options().decoupled_weight_decay) {
    return Descend(c, p, Decayed(c, p, Accelerate(c, p, p.gradient)));
  }
  return Descend(c, p, Accelerate(c, p, Decayed(c, p, p.gradient)));
}

// LARS as in MLPerf's ResNet reference (mlperf/training, lars_optimizer.py),
// where the momentum includes the learning rate. Biases and normalisations have
// trust 1:
//
//   trust = coefficient * |p| / (|g| + wd * |p|)
//   v = mu * v + lr * trust * (g + wd * p)
//   p = p - v
Value* Lars(UpdateContext& c, const UpdatedParameter& p) {
  Builder& b = c.builder();
  Value* step = Decayed(c, p, p.gradient);
  if (p.role == InputRole::kWeight) {
    Value* weight = WeightNorm(c, p);
    Value* gradient = c.Norm(p.gradient, p.is_part());
    Value* share = b.Times(weight, c.options().lars_coefficient);
    Value* sum = b.Plus(gradient, b.Times(weight, c.WeightDecay(p)));
    Value* trust = Trust(b, weight, gradient, b.Divide(share, sum));
    step = Scaled(c, p, trust, step);
  }
  return b.Minus(p.value, Accelerate(c, p, ScaledByLr(c, p, step)));
}

// torch.optim.Adam (torch/optim/adam.py, _single_tensor_adam) without amsgrad:
//
//   g = g + wd * p
//   p = p - lr * step         see AdamStep
Value* Adam(UpdateContext& c, const UpdatedParameter& p) {
  return Descend(c, p, AdamStep(c, p, Decayed(c, p, p.gradient)));
}

// torch.optim.AdamW (torch/optim/adamw.py, _single_tensor_adam of adam.py):
//
//   p = p * (1 - lr * wd)
//   p = p - lr * step         see AdamStep
//
// that is p - lr * (step + wd * p), which rounds less: 1 - lr * wd keeps few
// digits of lr * wd.
Value* AdamW(UpdateContext& c, const UpdatedParameter& p) {
  return Descend(c, p, Decayed(c, p, AdamStep(c, p, p.gradient)));
}

// torch.optim.RMSprop (torch/optim/rmsprop.py, _single_tensor_rmsprop), not
// centered:
//
//   g = g + wd * p
//   s = alpha * s + (1 - alpha) * g * g
//   v = mu * v + g / (sqrt(s) + eps)
//   p = p - lr * v
Value* Rmsprop(UpdateContext& c, const UpdatedParameter& p) {
  Builder& b = c.builder();
  Value* g = Decayed(c, p, p.gradient);
  Value* s = SecondMoment(c, p, c.options().alpha, g);
  Value* step = b.Divide(g, b.Plus(b.Sqrt(s), c.options().eps));
  return Descend(c, p, Accelerate(c, p, step));
}

// tf.compat.v1.train.RMSPropOptimizer, not centered, as in RMSpropTF of timm
// (timm/optim/rmsprop_tf.py). The momentum includes the learning rate, and s
// starts at 1:
//
//   g = g + wd * p
//   s = s + (1 - alpha) * (g * g - s)
//   v = mu * v + lr * g / sqrt(s + eps)
//   p = p - v
Value* RmspropTf(UpdateContext& c, const UpdatedParameter& p) {
  Builder& b = c.builder();
  Value* g = Decayed(c, p, p.gradient);
  Value* s = SecondMoment(c, p, c.options().alpha, g, /*initial=*/1);
  Value* step = b.Divide(g, b.Sqrt(b.Plus(s, c.options().eps)));
  return b.Minus(p.value, Accelerate(c, p, ScaledByLr(c, p, step)));
}

// LAMB as in NVIDIA's BERT (apex/optimizers/fused_lamb.py and
// csrc/multi_tensor_lamb.cu, with adam_w_mode, grad_averaging and
// bias_correction). Parameters without weight decay have trust 1:
//
//   u = step + wd * p         see AdamStep
//   trust = |p| / |u|
//   p = p - lr * trust * u
Value* Lamb(UpdateContext& c, const UpdatedParameter& p) {
  Builder& b = c.builder();
  Value* step = Decayed(c, p, AdamStep(c, p, p.gradient));
  if (c.WeightDecay(p) == 0) return Descend(c, p, step);
  Value* weight = WeightNorm(c, p);
  Value* norm = c.Norm(step, p.is_part());
  Value* trust = Trust(b, weight, norm, b.Divide(weight, norm));
  return Descend(c, p, Scaled(c, p, trust, step));
}

struct OptimizerRule {
  OptimizerKind kind;
  std::string_view name;
  std::array<std::string_view, 3> flags;  // options that only some rules have
  bool counts;                            // needs the count of updates
  Value* (*update)(UpdateContext&, const UpdatedParameter&);
};

constexpr OptimizerRule kRules[] = {
    {OptimizerKind::kSgd,
     "sgd",
     {"momentum", "nesterov", "decoupled-weight-decay"},
     false,
     Sgd},
    {OptimizerKind::kLars,
     "lars",
     {"momentum", "nesterov", "lars-coefficient"},
     false,
     Lars},
    {OptimizerKind::kAdam, "adam", {"beta1", "beta2", "eps"}, true, Adam},
    {OptimizerKind::kAdamW, "adamw", {"beta1", "beta2", "eps"}, true, AdamW},
    {OptimizerKind::kRmsprop,
     "rmsprop",
     {"alpha", "momentum", "eps"},
     false,
     Rmsprop},
    {OptimizerKind::kRmspropTf,
     "rmsprop-tf",
     {"alpha", "momentum", "eps"},
     false,
     RmspropTf},
    {OptimizerKind::kLamb, "lamb", {"beta1", "beta2", "eps"}, true, Lamb},
};

const OptimizerRule& RuleOf(OptimizerKind kind) {
  const auto* rule =
      std::find_if(std::begin(kRules), std::end(kRules),
                   [&](const OptimizerRule& r) { return r.kind == kind; });
  FUSOR_ASSERT(rule != std::end(kRules), "optimizer {} has no rule",
               static_cast<int>(kind));
  return *rule;
}

bool Has(const OptimizerRule& rule, std::string_view flag) {
  return std::find(rule.flags.begin(), rule.flags.end(), flag) !=
         rule.flags.end();
}

}  // namespace

std::string_view OptimizerName(OptimizerKind kind) { return RuleOf(kind).name; }

std::vector<std::string> OptimizerNames() {
  std::vector<std::string> names;
  for (const OptimizerRule& rule : kRules) names.emplace_back(rule.name);
  return names;
}

OptimizerKind ParseOptimizer(std::string_view name) {
  for (const OptimizerRule& rule : kRules) {
    if (rule.name == name) return rule.kind;
  }
  ThrowError(ErrorCode::kUsage, fmt::format("optimizer {}: expected {}", name,
                                            Join(OptimizerNames(), " or ",
                                                 [](auto n) { return n; })));
}

bool HasOption(OptimizerKind kind, std::string_view flag) {
  const bool of_all =
      std::none_of(std::begin(kRules), std::end(kRules),
                   [&](const OptimizerRule& rule) { return Has(rule, flag); });
  return of_all || Has(RuleOf(kind), flag);
}

UpdateContext::UpdateContext(ir::Graph& graph, const OptimizerOptions& options,
                             int ranks)
    : graph_(graph), options_(options), ranks_(ranks), builder_(graph) {
  lr_ = TrainingInput(graph, {DType::kF32, {}, {}}, InputRole::kHyperParameter,
                      ir::kLearningRate);
  if (!RuleOf(options.kind).counts) return;
  Builder& b = builder_;
  Value* t = Count(ir::kUpdates, "bias_correction");
  t = b.Cast(b.Plus(t, 1), DType::kF64);
  Value* one = b.Scalar(DType::kF64, 1);
  const auto remainder = [&](double beta) {
    return b.Minus(one, b.Pow(b.Scalar(DType::kF64, beta), t));
  };
  first_correction_ = b.Divide(one, remainder(options.beta1));
  second_correction_ = b.Divide(one, b.Sqrt(remainder(options.beta2)));
}

double UpdateContext::LrScale(const UpdatedParameter& p) const {
  const int64_t group = GroupIndex(options_, std::string(p.whole->name()));
  return group < 0 ? 1 : options_.groups[group].lr_scale;
}

double UpdateContext::WeightDecay(const UpdatedParameter& p) const {
  const int64_t group = GroupIndex(options_, std::string(p.whole->name()));
  if (group >= 0 && options_.groups[group].weight_decay.has_value()) {
    return *options_.groups[group].weight_decay;
  }
  return p.role == InputRole::kWeight ? options_.weight_decay
                                      : options_.norm_weight_decay;
}

Value* UpdateContext::StateOf(const UpdatedParameter& p,
                              std::string (*name)(std::string_view),
                              double initial) {
  if (p.is_part()) return ShardInput(graph_, *p.whole, name, ranks_, initial);
  return TrainingInput(graph_, p.value->type(), InputRole::kOptimizerState,
                       name(p.value->name()), initial);
}

void UpdateContext::Replace(const Value& state, Value* next) {
  graph_.AddOutput(next, state.name(), state.index());
}

Value* UpdateContext::Count(const char* name, const char* path) {
  builder_.Inherit(StepLocation(graph_, path));
  Value* count = TrainingInput(graph_, {DType::kI32, {}, {}},
                               InputRole::kOptimizerState, name);
  Replace(*count, builder_.Plus(count, 1));
  return count;
}

Value* UpdateContext::Spread(Value* scalar, const UpdatedParameter& p) {
  const ir::TensorType& type = p.value->type();
  return builder_.BroadcastTo(builder_.Cast(scalar, type.dtype), type.shape);
}

Value* UpdateContext::Norm(Value* value, bool part) {
  Value* sum = SumOfSquares(builder_, value);
  if (part) sum = SumOverRanks(builder_, sum, ranks_);
  return builder_.Sqrt(sum);
}

Value* UpdateParameter(UpdateContext& context, const UpdatedParameter& p) {
  return RuleOf(context.options().kind).update(context, p);
}

}  // namespace fusor::passes
