#include "tools/inspect/report/chrome_trace.h"

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
  const std::vector<double> starts = StartTimes(plan, report);
  int streams = 0;
  for (size_t i = 0; i < report.steps.size(); ++i) {
    const StepCost& cost = report.steps[i];
    const Step& step = plan.steps[cost.step];
    for (; streams <= step.stream; ++streams) {
      events.push_back(ThreadName(streams));
    }
    events.push_back(Event(step, cost, starts[i]));
  }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
}

}  // namespace fusor::codegen
