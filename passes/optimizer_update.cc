// torch.optim.SGD (torch/optim/sgd.py, _single_tensor_sgd), dampening 0:
//
//   g = g + wd * p            unless decoupled
//   v = mu * v + g            torch's first step sets v = g; v starts at 0
//   g = g + mu * v            with Nesterov, else g = v
//   p = p * (1 - lr * wd)     if decoupled, as in torch.optim.AdamW
//   p = p - lr * g

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "ir/builder.h"
#include "ir/support/error.h"
#include "passes/autodiff.h"
#include "passes/passes.h"

namespace fusor::passes {
namespace {

using ir::Builder;
using ir::Graph;
using ir::InputRole;
using ir::Value;

struct Parameter {
  int input;
  Value* gradient;
};

// By the position of the gradient's producer, then by its result: the order in
// which gradients become ready.
std::vector<Parameter> CollectGradients(const Graph& graph) {
  std::vector<Parameter> parameters;
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    if (!IsParameter(graph.inputs()[i].role)) continue;
    const int output = graph.FindOutput(GradientName(*graph.input(i)));
    if (output < 0) continue;
    Value* gradient = graph.outputs()[output].value;
    FUSOR_CHECK(gradient->type().shape == graph.input(i)->type().shape, kGraph,
                "optimizer: {} is {}, its gradient {}", graph.input(i)->name(),
                ToString(graph.input(i)->type()), ToString(gradient->type()));
    parameters.push_back({static_cast<int>(i), gradient});
  }
  const auto ready = [](const Parameter& p) {
    const ir::Node* node = p.gradient->producer();
    return std::pair(node == nullptr ? -1 : node->position(),
                     p.gradient->index());
  };
  std::stable_sort(parameters.begin(), parameters.end(),
                   [&](const Parameter& a, const Parameter& b) {
                     return ready(a) < ready(b);
                   });
  return parameters;
}

Value* LearningRate(Graph& graph) {
  Value* lr = graph.FindInput("lr");
  const ir::TensorType scalar{ir::DType::kF32, {}, {}};
  if (lr == nullptr) {
    return graph.AddInput(scalar, InputRole::kHyperParameter, "lr");
  }
  FUSOR_CHECK(lr->type() == scalar && graph.inputs()[lr->index()].role ==
                                          InputRole::kHyperParameter,
              kGraph,
              "optimizer: input lr is taken: expected a hyper-parameter {}, "
              "got {}",
              ToString(scalar), ToString(lr->type()));
  return lr;
}

Value* MomentumState(Graph& graph, const Value& parameter) {
  const std::string name = "momentum/" + parameter.name();
  FUSOR_CHECK(graph.FindInput(name) == nullptr, kGraph,
              "optimizer: input {} exists already", name);
  return graph.AddInput(parameter.type(), InputRole::kOptimizerState, name,
                        {{"init", std::string("constant")}, {"value", 0.0}});
}

// The updates of one graph.
class Sgd {
 public:
  Sgd(Graph& graph, const OptimizerOptions& options)
      : graph_(graph), options_(options), builder_(graph) {}

  void Update(const Parameter& parameter) {
    if (lr_ == nullptr) lr_ = LearningRate(graph_);
    Value* p = graph_.input(parameter.input);
    if (parameter.gradient->producer() != nullptr) {
      builder_.set_location(parameter.gradient->producer()->location());
    }
    Value* g = builder_.Cast(parameter.gradient, p->type().dtype);
    const double decay = WeightDecay(graph_.inputs()[parameter.input].role);
    const bool decoupled = options_.decoupled_weight_decay;
    if (decay != 0 && !decoupled) {
      g = builder_.Plus(g, builder_.Times(p, decay));
    }
    if (options_.momentum != 0) g = Accelerate(*p, g);
    Value* lr = builder_.BroadcastTo(builder_.Cast(lr_, p->type().dtype),
                                     p->type().shape);
    Value* kept = p;
    if (decay != 0 && decoupled) {
      Value* factor =
          builder_.Minus(builder_.ScalarLike(lr, 1), builder_.Times(lr, decay));
      kept = builder_.Times(p, factor);
    }
    Value* updated = builder_.Minus(kept, builder_.Times(lr, g));
    graph_.AddOutput(updated, p->name(), parameter.input);
  }

 private:
  double WeightDecay(InputRole role) const {
    return role == InputRole::kWeight ? options_.weight_decay
                                      : options_.norm_weight_decay;
  }

  Value* Accelerate(const Value& p, Value* g) {
    Value* state = MomentumState(graph_, p);
    Value* v = builder_.Plus(builder_.Times(state, options_.momentum), g);
    graph_.AddOutput(v, state->name(), state->index());
    return options_.nesterov
               ? builder_.Plus(g, builder_.Times(v, options_.momentum))
               : v;
  }

  Graph& graph_;
  const OptimizerOptions& options_;
  Builder builder_;
  Value* lr_ = nullptr;
};

}  // namespace

bool OptimizerUpdate(Graph& graph, PassContext& context) {
  const std::vector<Parameter> parameters = CollectGradients(graph);
  if (parameters.empty()) return false;
  Sgd sgd(graph, context.options().optimizer);
  for (const Parameter& parameter : parameters) sgd.Update(parameter);
  if (!context.options().keep_gradients) {
    std::unordered_set<std::string> gradients;
    for (const Parameter& parameter : parameters) {
      gradients.insert(GradientName(*graph.input(parameter.input)));
    }
    std::erase_if(graph.mutable_outputs(), [&](const ir::Output& output) {
      return gradients.contains(output.name);
    });
  }
  return true;
}

}  // namespace fusor::passes
