#include <algorithm>
#include <unordered_set>

#include "ir/op.h"
#include "ir/state_names.h"
#include "ir/weight_copy.h"
#include "tools/inspect/report/graph_view.h"

namespace fusor::inspect {
namespace {

using ir::Graph;
using ir::Node;
using Values = std::unordered_set<const ir::Value*>;

// Returns, by position, whether any of `targets` depends on the node.
std::vector<bool> LeadingTo(const Graph& graph, const Values& targets) {
  std::vector<bool> leads(graph.nodes().size(), false);
  for (size_t i = graph.nodes().size(); i-- > 0;) {
    const Node& node = *graph.nodes()[i];
    for (size_t r = 0; r < node.num_outputs(); ++r) {
      leads[i] = leads[i] || targets.contains(node.output(r));
      for (const ir::Use& use : node.output(r)->uses()) {
        leads[i] = leads[i] || leads[use.node->position()];
      }
    }
  }
  return leads;
}

// Returns whether a node is elementwise, moves data or checks all gradients.
// Updates consist of these.
bool IsLight(const Node& node) {
  if (node.body() != nullptr) {
    for (const auto& inner : node.body()->nodes()) {
      if (!IsLight(*inner) && inner->kind() != ir::OpKind::kCopy) return false;
    }
    return true;
  }
  const ir::FusionKind kind = node.op().fusion;
  return kind == ir::FusionKind::kElementwise ||
         kind == ir::FusionKind::kInjective ||
         kind == ir::FusionKind::kIndexed || kind == ir::FusionKind::kSource ||
         kind == ir::FusionKind::kSeparate;
}

// Returns whether a node belongs to the update although it reduces, e.g. norms
// of LARS. Such a fusion contains no gradient computation, because the
// all-reduce is in between. A scalar cannot be a tensor's gradient.
bool IsWholeUpdate(const Node& node, const Values& next) {
  for (size_t r = 0; r < node.num_outputs(); ++r) {
    const ir::Value* value = node.output(r);
    const bool fused_update = node.body() != nullptr && next.contains(value);
    if (!fused_update && !value->type().shape.empty()) return false;
  }
  return true;
}

// Returns whether a node only makes a cached 16-bit weight in the state.
bool IsWeightCopy(const Node& node, const Values& next) {
  const std::vector<ir::Use>& uses = node.output()->uses();
  return node.kind() == ir::OpKind::kCopy &&
         (next.contains(node.output()) ||
          (!uses.empty() &&
           std::all_of(uses.begin(), uses.end(), [&](const ir::Use& use) {
             return IsWeightCopy(*use.node, next);
           })));
}

// Returns the outputs that alias parameters, optimizer state or weight copies.
Values NextParameters(const Graph& graph) {
  Values next;
  for (const ir::Output& output : graph.outputs()) {
    if (output.alias < 0) continue;
    const ir::InputRole role = graph.inputs()[output.alias].role;
    if (IsParameter(role) || role == ir::InputRole::kOptimizerState ||
        role == ir::InputRole::kWeightCopy) {
      next.insert(output.value);
    }
  }
  return next;
}

Values GradientOutputs(const Graph& graph) {
  Values gradients;
  for (const ir::Input& input : graph.inputs()) {
    if (!IsParameter(input.role)) continue;
    const int i = graph.FindOutput(ir::GradientName(input.value->name()));
    if (i >= 0) gradients.insert(graph.outputs()[i].value);
  }
  return gradients;
}

}  // namespace

std::string_view PhaseName(StepPhase phase) {
  switch (phase) {
    case StepPhase::kForward:
      return "forward";
    case StepPhase::kBackward:
      return "backward";
    case StepPhase::kUpdate:
      return "update";
  }
  return "";
}

std::vector<StepPhase> PhasesOf(const Graph& graph) {
  std::vector<StepPhase> phases(graph.nodes().size(), StepPhase::kForward);
  const int loss = graph.FindOutput("loss");
  if (loss < 0) return phases;
  const Values next = NextParameters(graph);
  const Values gradients = GradientOutputs(graph);
  Values trained = next;
  trained.insert(gradients.begin(), gradients.end());
  const auto forward = LeadingTo(graph, {graph.outputs()[loss].value});
  const auto training = LeadingTo(graph, trained);
  for (size_t i = graph.nodes().size(); i-- > 0;) {
    const Node& node = *graph.nodes()[i];
    if (forward[i] || !training[i]) continue;
    bool update =
        IsLight(node) || IsWeightCopy(node, next) || IsWholeUpdate(node, next);
    for (size_t r = 0; r < node.num_outputs(); ++r) {
      const ir::Value* value = node.output(r);
      update &= !gradients.contains(value);
      for (const ir::Use& use : value->uses()) {
        update &= phases[use.node->position()] == StepPhase::kUpdate;
      }
    }
    phases[i] = update ? StepPhase::kUpdate : StepPhase::kBackward;
  }
  return phases;
}

}  // namespace fusor::inspect
