#include "tools/inspect/scaling/step_timeline.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

class TimelineBuilder {
 public:
  TimelineBuilder(const Plan& plan, const ir::Graph& graph,
                  const PlanReport& report)
      : graph_(graph), phases_(PhasesOf(graph)) {
    for (const StepCost* cost : InGraphOrder(plan, report)) {
      const double seconds = cost->us() * 1e-6;
      if (cost->phase == StepPhase::kUpdate) {
        timeline_.update += seconds;
        continue;
      }
      if (cost->phase == StepPhase::kForward) timeline_.forward += seconds;
      timeline_.backward += seconds;
      ended_[plan.steps[cost->step].name] = timeline_.backward;
    }
  }

  StepTimeline Build() {
    for (const auto& node : graph_.nodes()) {
      if (phases_[node->position()] != StepPhase::kUpdate) continue;
      for (size_t i = 0; i < node->num_inputs(); ++i)
        AddGradient(node->input(i));
    }
    std::stable_sort(
        timeline_.gradients.begin(), timeline_.gradients.end(),
        [](const auto& a, const auto& b) { return a.ready < b.ready; });
    int64_t parameters = 0;
    for (const ir::Input& input : graph_.inputs()) {
      if (!IsParameter(input.role)) continue;
      parameters += input.value->type().num_elements();
    }
    // Shared gradients may make up less than a tenth; see the header.
    const int64_t elements = timeline_.elements();
    FUSOR_CHECK(elements > 0 && elements <= parameters &&
                    elements > parameters - parameters / 10,
                kGraph,
                "{}: the update reads {} elements of gradients, expected {}, "
                "those of the parameters",
                graph_.name(), elements, parameters);
    return timeline_;
  }

 private:
  // Returns the costs in node order. Steps without a node keep their place.
  std::vector<const StepCost*> InGraphOrder(const Plan& plan,
                                            const PlanReport& report) const {
    std::unordered_map<std::string, size_t> position;
    for (const auto& node : graph_.nodes()) {
      if (node->num_outputs() == 0) continue;
      position[node->output()->name()] = node->position();
    }
    std::vector<std::pair<size_t, const StepCost*>> order;
    for (const StepCost& cost : report.steps) {
      const auto found = position.find(plan.steps[cost.step].name);
      const size_t last = order.empty() ? 0 : order.back().first;
      order.emplace_back(found == position.end() ? last : found->second, &cost);
    }
    std::stable_sort(
        order.begin(), order.end(),
        [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<const StepCost*> costs;
    for (const auto& [at, cost] : order) costs.push_back(cost);
    return costs;
  }

  // Adds a value of the backward pass, except scalars of loss scaling.
  void AddGradient(const ir::Value* value) {
    const ir::Node* node = value->producer();
    if (node == nullptr || value->type().num_elements() == 1 ||
        phases_[node->position()] == StepPhase::kUpdate ||
        !seen_.insert(value).second) {
      return;
    }
    timeline_.gradients.push_back(
        {node->location().path, value->type().num_elements(), EndOf(*node)});
  }

  // Returns when the node's result is ready; a view is ready with its operand.
  double EndOf(const ir::Node& node) const {
    const auto found = ended_.find(node.output()->name());
    if (found != ended_.end()) return found->second;
    double end = 0;
    for (size_t i = 0; i < node.num_inputs(); ++i) {
      const ir::Node* producer = node.input(i)->producer();
      if (producer != nullptr) end = std::max(end, EndOf(*producer));
    }
    return end;
  }

  const ir::Graph& graph_;
  const std::vector<StepPhase> phases_;
  StepTimeline timeline_;
  std::unordered_map<std::string, double> ended_;  // by the node's first result
  std::unordered_set<const ir::Value*> seen_;
};

}  // namespace

int64_t StepTimeline::elements() const {
  int64_t sum = 0;
  for (const Gradient& gradient : gradients) sum += gradient.elements;
  return sum;
}

StepTimeline TimelineOf(const Plan& plan, const ir::Graph& graph,
                        const PlanReport& report) {
  return TimelineBuilder(plan, graph, report).Build();
}

StepTimeline Stretched(StepTimeline timeline, double step_seconds) {
  const double factor = step_seconds / timeline.step();
  timeline.forward *= factor;
  timeline.backward *= factor;
  timeline.update *= factor;
  for (StepTimeline::Gradient& gradient : timeline.gradients) {
    gradient.ready *= factor;
  }
  return timeline;
}

}  // namespace fusor::codegen
