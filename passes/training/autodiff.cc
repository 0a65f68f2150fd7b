// Reverse-mode differentiation (Griewank and Walther, "Evaluating
// Derivatives", chapter 3) as a transformation of the graph:
//
//  1. Forward over the nodes: a floating-point value is active if it is in
//     `wrt` or computed from an active one, except by an elementwise op without
//     a gradient rule. Only active values get gradients, so nothing is built
//     for the part of the model before the first parameter.
//  2. Backward from the loss: when a node is visited, all users of its results
//     have contributed, so their gradients are complete. Its rule turns them
//     into contributions to its operands, which are added up one by one. Those
//     of slices that divide the operand are concatenated instead.
//  3. A rule builds the gradients of all its operands at once. Those of
//     inactive operands (e.g. the image of the first convolution) are erased
//     again.

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "ir/builder.h"
#include "ir/op.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "passes/passes.h"
#include "passes/simplify/constant_folding.h"
#include "passes/simplify/dead_code.h"
#include "passes/training/training_state.h"

namespace fusor::passes {
namespace {

using ir::Builder;
using ir::Graph;
using ir::Node;
using ir::Value;

// Returns true if the derivative of the result is zero.
bool IsConstant(const ir::OpDef& op) {
  return op.gradient == nullptr && op.fusion == ir::FusionKind::kElementwise;
}

class Differentiation {
 public:
  Differentiation(Graph& graph, std::span<Value* const> wrt)
      : graph_(graph), builder_(graph), forward_size_(graph.nodes().size()) {
    for (const Value* value : wrt) {
      if (ir::IsFloat(value->type().dtype)) active_.insert(value);
    }
    for (const auto& node : graph.nodes()) MarkActive(*node);
  }

  void Run(Value* loss, Value* scale) {
    if (!active_.contains(loss)) return;
    builder_.Inherit(ir::LocationOf(*loss));
    const ir::DType dtype = loss->type().dtype;
    gradients_[loss] = scale == nullptr ? builder_.Scalar(dtype, 1)
                                        : builder_.Cast(scale, dtype);
    for (size_t i = forward_size_; i-- > 0;) {
      Differentiate(*graph_.nodes()[i]);
    }
  }

  // REQUIRES: Run was called.
  Value* GradientOf(const Value* value) {
    if (Value* gradient = Complete(value)) return gradient;
    builder_.Inherit(ir::LocationOf(*value));
    return builder_.Zeros(value->type());
  }

  // Erases the appended nodes that `results` do not depend on.
  void EraseUnneeded(const std::vector<Value*>& results) {
    std::unordered_set<const Node*> needed;
    for (const Value* value : results) needed.insert(value->producer());
    std::vector<Node*> unneeded;
    for (size_t i = graph_.nodes().size(); i-- > forward_size_;) {
      Node* node = graph_.nodes()[i].get();
      if (!needed.contains(node)) {
        unneeded.push_back(node);
        continue;
      }
      for (const Value* value : node->inputs()) {
        needed.insert(value->producer());
      }
    }
    graph_.EraseAll(unneeded);
  }

 private:
  bool ReadsActive(const Node& node) const {
    return std::any_of(node.inputs().begin(), node.inputs().end(),
                       [&](const Value* v) { return active_.contains(v); });
  }

  void MarkActive(const Node& node) {
    if (IsConstant(node.op()) || !ReadsActive(node)) return;
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      const Value* value = node.output(i);
      if (ir::IsFloat(value->type().dtype)) active_.insert(value);
    }
  }

  void Differentiate(const Node& node) {
    std::vector<Value*> d_outputs;
    bool reached = false;
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      d_outputs.push_back(Complete(node.output(i)));
      reached |= d_outputs.back() != nullptr;
    }
    if (!reached || IsConstant(node.op()) || !ReadsActive(node)) return;
    FUSOR_CHECK(node.op().gradient != nullptr, kGraph,
                "{}{} cannot be differentiated", node.op_name(),
                ir::AtLocation(node.location()));
    builder_.Inherit(node.location());
    const size_t before = builder_.graph().nodes().size();
    const std::vector<Value*> d_inputs =
        node.op().gradient(builder_, node, d_outputs);
    if (ir::KeepsPrecision(node)) {
      ir::KeepPrecision(builder_.graph(), before);
    }
    FUSOR_ASSERT(d_inputs.size() == node.num_inputs(),
                 "{}: {} gradients for {} operands", node.op_name(),
                 d_inputs.size(), node.num_inputs());
    for (size_t i = 0; i < d_inputs.size(); ++i) {
      if (d_inputs[i] != nullptr) Contribute(node.input(i), d_inputs[i]);
    }
  }

  void Contribute(const Value* value, Value* gradient) {
    if (!active_.contains(value)) return;
    FUSOR_ASSERT(gradient->type() == value->type(),
                 "the gradient of {} has type {}, expected {}", value->name(),
                 ToString(gradient->type()), ToString(value->type()));
    if (PaddedDim(gradient->producer()) >= 0) {
      parts_[value].push_back(gradient->producer());
    } else {
      Add(value, gradient);
    }
  }

  void Add(const Value* value, Value* gradient) {
    Value*& sum = gradients_[value];
    sum = sum == nullptr ? gradient : builder_.Plus(sum, gradient);
  }

  // Returns the sum of all contributions; null if there are none.
  Value* Complete(const Value* value) {
    const auto parts = parts_.find(value);
    if (parts != parts_.end()) {
      builder_.Inherit(parts->second.back()->location());
      if (Value* whole = Concatenate(parts->second)) {
        Add(value, whole);
      } else {
        for (Node* part : parts->second) Add(value, part->output());
      }
      parts_.erase(parts);
    }
    const auto it = gradients_.find(value);
    return it == gradients_.end() ? nullptr : it->second;
  }

  // Returns the only dimension in which a node pads its operand with zeros, as
  // the gradient of a slice does; -1 if there is none.
  static int64_t PaddedDim(const Node* node) {
    if (!IsOp(node, ir::OpKind::kPad) || node->attrs().Float("value") != 0) {
      return -1;
    }
    const ir::Shape& part = node->input(0)->type().shape;
    const ir::Attrs& attrs = node->attrs();
    int64_t dim = -1;
    for (size_t d = 0; d < part.size(); ++d) {
      if (attrs.Ints("interior")[d] != 0 && part[d] > 1) return -1;
      if (attrs.Ints("low")[d] == 0 && attrs.Ints("high")[d] == 0) continue;
      if (dim >= 0) return -1;
      dim = static_cast<int64_t>(d);
    }
    return dim;
  }

  // Returns the concatenation of what the nodes pad if the sum of their results
  // has exactly one of them at each place; otherwise null.
  Value* Concatenate(std::vector<Node*> pads) {
    const int64_t dim = PaddedDim(pads[0]);
    const auto start = [&](const Node* pad) {
      return pad->attrs().Ints("low")[dim];
    };
    std::sort(pads.begin(), pads.end(), [&](const Node* a, const Node* b) {
      return start(a) < start(b);
    });
    std::vector<Value*> parts;
    int64_t end = 0;
    for (const Node* pad : pads) {
      if (PaddedDim(pad) != dim || start(pad) != end) return nullptr;
      parts.push_back(pad->input(0));
      end += parts.back()->type().shape[dim];
    }
    if (end != pads[0]->output()->type().shape[dim]) return nullptr;
    return builder_.Concat(parts, dim);
  }

  Graph& graph_;
  Builder builder_;
  const size_t forward_size_;
  std::unordered_set<const Value*> active_;
  std::unordered_map<const Value*, Value*> gradients_;
  // Contributions of slices that have not been added.
  std::unordered_map<const Value*, std::vector<Node*>> parts_;
};

}  // namespace

std::vector<Value*> BuildGradients(Graph& graph, Value* loss,
                                   std::span<Value* const> wrt, Value* scale) {
  FUSOR_CHECK(loss != nullptr &&
                  std::find(wrt.begin(), wrt.end(), nullptr) == wrt.end(),
              kGraph, "gradients in graph {}: expected values, got null",
              graph.name());
  FUSOR_CHECK(loss->type().rank() == 0 && ir::IsFloat(loss->type().dtype),
              kGraph, "loss {}: expected a floating-point scalar, got {}",
              loss->name(), ToString(loss->type()));
  Differentiation differentiation(graph, wrt);
  differentiation.Run(loss, scale);
  std::vector<Value*> gradients;
  for (const Value* value : wrt) {
    gradients.push_back(differentiation.GradientOf(value));
  }
  differentiation.EraseUnneeded(gradients);
  return gradients;
}

namespace {

// Returns the location of the parameter's first use.
ir::Location ConsumerLocation(const Value& parameter) {
  const Node* first = nullptr;
  for (const ir::Use& use : parameter.uses()) {
    if (first == nullptr || use.node->position() < first->position()) {
      first = use.node;
    }
  }
  return first == nullptr ? ir::Location() : first->location();
}

// Moves each of `appended`, the last nodes of the graph, right after the node
// that it reads, so that a gradient is reduced as soon as it is ready.
void MoveToProducers(Graph& graph, const std::vector<Node*>& appended) {
  std::unordered_map<const Node*, std::vector<Node*>> readers;
  for (Node* node : appended) {
    readers[node->input(0)->producer()].push_back(node);
  }
  std::vector<Node*> order = readers[nullptr];
  const size_t kept = graph.nodes().size() - appended.size();
  for (size_t i = 0; i < kept; ++i) {
    Node* node = graph.nodes()[i].get();
    order.push_back(node);
    const auto next = readers.find(node);
    if (next == readers.end()) continue;
    order.insert(order.end(), next->second.begin(), next->second.end());
  }
  graph.Reorder(order);
}

// Replaces each custom_gradient, and each stop_gradient that `allow` accepts,
// by its operand. Erases the nodes that only a custom_gradient used.
template <typename Allow>
bool EraseStopGradients(Graph& graph, const Allow& allow) {
  std::vector<Node*> dropped;
  bool custom = false;
  for (const auto& node : graph.nodes()) {
    const bool constant =
        IsConstant(node->op()) && NodeScalar(*node) == ir::ScalarOp::kIdentity;
    const bool own = node->kind() == ir::OpKind::kCustomGradient;
    if (!own && (!constant || !allow(*node->output()))) continue;
    custom |= own;
    graph.ReplaceAllUses(node->output(), node->input(0));
    dropped.push_back(node.get());
  }
  graph.EraseAll(dropped);
  if (custom) EraseDeadNodes(graph);
  return !dropped.empty();
}

// Adds the all-reduced gradients as outputs.
void AddReducedGradients(Graph& graph, const std::vector<Value*>& parameters,
                         const std::vector<Value*>& gradients,
                         PassContext& context) {
  std::vector<Node*> reduced;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (SplatOf(*gradients[i]) == 0) {
      context.Record({.pass = "autodiff",
                      .subject = parameters[i]->name(),
                      .accepted = false,
                      .reason = "the loss does not depend on it",
                      .location = ConsumerLocation(*parameters[i])});
      graph.Erase(gradients[i]->producer());
      continue;
    }
    reduced.push_back(graph.AddNode("all_reduce", {gradients[i]}, {},
                                    ConsumerLocation(*parameters[i])));
    graph.AddOutput(reduced.back()->output(),
                    ir::GradientName(parameters[i]->name()));
  }
  MoveToProducers(graph, reduced);
}

}  // namespace

bool Autodiff(Graph& graph, PassContext& context) {
  const int loss = graph.FindOutput("loss");
  FUSOR_CHECK(loss >= 0, kGraph, "graph {}: no output named loss",
              graph.name());
  std::vector<Value*> parameters;
  for (const ir::Input& input : graph.inputs()) {
    if (IsParameter(input.role)) parameters.push_back(input.value.get());
  }
  FUSOR_CHECK(!parameters.empty(), kGraph, "graph {}: no parameters to train",
              graph.name());
  const auto sizes = [&] {
    return std::tuple(graph.inputs().size(), graph.nodes().size(),
                      graph.outputs().size());
  };
  const auto before = sizes();
  const std::vector<Value*> gradients =
      BuildGradients(graph, graph.outputs()[loss].value, parameters,
                     LossScale(graph, context.options().loss_scale));
  AddReducedGradients(graph, parameters, gradients, context);
  EraseStopGradients(graph, [](const Value&) { return true; });
  return sizes() != before;  // a loss without parameters has no gradients
}

bool DropStopGradient(Graph& graph, PassContext& context) {
  return EraseStopGradients(graph, [&](const Value& value) {
    return context.ConsumeFuel("drop_stop_gradient", value);
  });
}

}  // namespace fusor::passes
