#include "codegen/report/chrome_trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

namespace fusor::codegen {
namespace {

using nlohmann::json;

json ThreadName(int stream) {
  return {{"ph", "M"},
          {"name", "thread_name"},
          {"pid", 0},
          {"tid", stream},
          {"args", {{"name", "stream " + std::to_string(stream)}}}};
}

json Event(const Step& step, const StepCost& cost, double start) {
  return {{"ph", "X"},
          {"name", step.location.path.empty() ? step.name : step.location.path},
          {"cat", cost.op_class},
          {"pid", 0},
          {"tid", step.stream},
          {"ts", start},
          {"dur", cost.us()},
          {"args",
           {{"op", step.op_class},
            {"value", step.name},
            {"source", ToString(step.location.source)},
            {"phase", PhaseName(cost.phase)},
            {"bytes", cost.bytes},
            {"flops", cost.flops},
            {"modelled_us", cost.modelled_us},
            {"share_of_limit", cost.share()},
            {"bound", BoundName(cost.bound)}}}};
}

}  // namespace

json ChromeTrace(const Plan& plan, const PlanReport& report) {
  json events = json::array();
  events.push_back({{"ph", "M"},
                    {"name", "process_name"},
                    {"pid", 0},
                    {"args", {{"name", plan.name + " on " + plan.target}}}});
  std::vector<double> happened(plan.num_events, 0);  // of each event
  std::vector<double> now;                           // of each stream
  for (const StepCost& cost : report.steps) {
    const Step& step = plan.steps[cost.step];
    while (static_cast<int>(now.size()) <= step.stream) {
      events.push_back(ThreadName(static_cast<int>(now.size())));
      now.push_back(0);
    }
    double& clock = now[step.stream];
    for (int event : step.waits) clock = std::max(clock, happened[event]);
    events.push_back(Event(step, cost, clock));
    clock += cost.us();
    if (step.records >= 0) happened[step.records] = clock;
  }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
}

}  // namespace fusor::codegen
