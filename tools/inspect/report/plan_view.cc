#include "tools/inspect/report/plan_view.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "ir/support/str.h"
#include "tools/inspect/html/html_page.h"
#include "tools/inspect/report/memory_report.h"
#include "tools/inspect/report/plan_report.h"

namespace fusor::inspect {

namespace {

using nlohmann::json;

// Returns GB/s for bytes, GFLOP/s for flops.
double Giga(int64_t amount, double us) {
  return us > 0 ? static_cast<double>(amount) / us / 1e3 : 0;
}

bool IsMeasured(const PlanReport& report) {
  return report.total.measured_us >= 0;
}

std::vector<const StepCost*> LongestSteps(const PlanReport& report) {
  std::vector<const StepCost*> steps;
  for (const StepCost& step : report.steps) steps.push_back(&step);
  std::stable_sort(
      steps.begin(), steps.end(),
      [](const StepCost* a, const StepCost* b) { return a->us() > b->us(); });
  return steps;
}

// `Cost`: ClassCost or StepCost.
template <typename Cost>
std::string CostCells(const Cost& cost, const ClassCost& total) {
  return fmt::format(
      "{:>9.3f} {:>6.1f} {:>9.3f} {:>10} {:>7.1f} {:>9} {:>8.1f} {:>6.0f}",
      cost.us() / 1e3, total.us() > 0 ? 100 * cost.us() / total.us() : 0,
      cost.modelled_us / 1e3, ShowBytes(cost.bytes),
      Giga(cost.bytes, cost.us()), ShowCount(cost.flops),
      Giga(cost.flops, cost.us()), 100 * cost.share());
}

constexpr const char* kCostHead =
    "       ms   time estimated      bytes    GB/s      FLOP  GFLOP/s  limit\n";

template <typename Cost>
json CostJson(const Cost& cost) {
  return {{"bytes", cost.bytes},
          {"flops", cost.flops},
          {"modelled_us", cost.modelled_us},
          {"measured_us",
           cost.measured_us < 0 ? json(nullptr) : json(cost.measured_us)},
          {"limit_us", cost.limit_us},
          {"share_of_limit", cost.share()}};
}

template <typename Cost>
std::vector<json> CostRow(const Cost& cost, const ClassCost& total) {
  return {fmt::format("{:.3f}", cost.us() / 1e3),
          fmt::format("{:.1f} %",
                      total.us() > 0 ? 100 * cost.us() / total.us() : 0),
          fmt::format("{:.3f}", cost.modelled_us / 1e3),
          ShowBytes(cost.bytes),
          fmt::format("{:.1f}", Giga(cost.bytes, cost.us())),
          ShowCount(cost.flops),
          fmt::format("{:.1f}", Giga(cost.flops, cost.us())),
          fmt::format("{:.0f} %", 100 * cost.share())};
}

const std::vector<std::string> kCostColumns = {
    "ms",   "of the step", "estimated ms", "bytes",
    "GB/s", "FLOP",        "GFLOP/s",      "of the limit"};

std::string TargetLine(const ir::Target& target) {
  return fmt::format("{}: {:g} GFLOP/s in f32, {:g} GB/s with {} {}",
                     target.name, target.peak_gflops_f32,
                     target.memory_gb_per_s, target.threads,
                     target.simt ? "multiprocessors" : "threads");
}

json ClassBars(const PlanReport& report) {
  std::vector<std::string> labels;
  std::vector<std::vector<double>> values;
  const bool measured = IsMeasured(report);
  for (const ClassCost& cost : report.classes) {
    labels.push_back(cost.op_class);
    values.push_back({cost.limit_us, cost.modelled_us});
    if (measured) values.back().push_back(cost.measured_us);
  }
  std::vector<std::string> series{"at the machine's limits", "estimated"};
  if (measured) series.push_back("measured");
  return BarSection("Time by op class", "us", std::move(series),
                    std::move(labels), std::move(values));
}

json CostTable(const std::string& title, std::vector<std::string> head,
               std::vector<std::vector<json>> rows) {
  head.insert(head.end(), kCostColumns.begin(), kCostColumns.end());
  return TableSection(title, "", std::move(head), std::move(rows), 25);
}

template <typename Cost>
std::vector<json> Row(std::vector<json> first, const Cost& cost,
                      const ClassCost& total) {
  for (json& cell : CostRow(cost, total)) first.push_back(std::move(cell));
  return first;
}

std::string SpanTable(const char* title, const char* tensors,
                      const std::string& rows) {
  if (rows.empty()) return "";
  return fmt::format("\n{:<24} {:>10} {:>10} {:>11} {:>11}\n{}", title, tensors,
                     "bytes", "start, ms", "end, ms", rows);
}

// Returns the times of parameter gathers and gradient reductions, and one line
// with the number of other gathers (statistics, or parameter shards at the end
// of the step).
std::string CollectiveLines(const codegen::Plan& plan,
                            const CollectiveTimeline& communication) {
  if (communication.collectives.empty()) return "";
  std::string sums, ahead;
  int gathers = 0;
  double gathering = 0;
  for (const CollectiveSpan& span : communication.collectives) {
    if (!span.sums && !span.gathers_ahead) {
      ++gathers;
      gathering += span.end_us - span.start_us;
      continue;
    }
    (span.sums ? sums : ahead) += fmt::format(
        "{:<24} {:>10} {:>10} {:>11.3f} {:>11.3f}\n",
        plan.steps[span.step].location.path, span.tensors,
        ShowBytes(span.bytes), span.start_us / 1e3, span.end_us / 1e3);
  }
  std::string out = SpanTable("all-gathers", "parameters", ahead) +
                    SpanTable("all-reduces", "gradients", sums);
  if (gathers > 0) {
    out += fmt::format("{} all-gathers, {:.3f} ms\n", gathers, gathering / 1e3);
  }
  return out + fmt::format(
                   "step ends at {:.3f} ms, {:.3f} ms of communication not "
                   "overlapped\n",
                   communication.end_us / 1e3,
                   communication.not_overlapped_us / 1e3);
}

}  // namespace

std::string PlanReportText(const codegen::Plan& plan, const PlanReport& report,
                           const ir::Target& target, size_t top) {
  std::string out = TargetLine(target) + "\n";
  out += fmt::format("memory: {} planned, lower bound {}\n",
                     ShowBytes(plan.peak_bytes),
                     ShowBytes(plan.lower_bound_bytes));
  out += fmt::format(
      "ms: {}; time: % of the step; limit: % of the peak rate of the limiting "
      "resource\n\n",
      IsMeasured(report) ? "measured per kernel" : "estimated");
  out += fmt::format("{:<24} {:>6} {}", "op class", "steps", kCostHead);
  const auto line = [&](const ClassCost& cost) {
    out += fmt::format("{:<24} {:>6} {}\n", cost.op_class, cost.steps,
                       CostCells(cost, report.total));
  };
  for (const ClassCost& cost : report.classes) line(cost);
  line(report.total);
  out += CollectiveLines(plan, CollectiveTimelineOf(plan, report));
  if (top == 0) return out;
  out += fmt::format("\n{:<31} {}", "longest steps", kCostHead);
  const std::vector<const StepCost*> steps = LongestSteps(report);
  for (size_t i = 0; i < std::min(top, steps.size()); ++i) {
    const codegen::Step& step = plan.steps[steps[i]->step];
    out += fmt::format(
        "{:<31} {}  {}, {}{}{}\n",
        step.location.path.empty() ? "%" + step.name : step.location.path,
        CostCells(*steps[i], report.total), steps[i]->op_class,
        BoundName(steps[i]->bound), step.location.source.empty() ? "" : ", ",
        ToString(step.location.source));
  }
  return out;
}

json PlanReportJson(const codegen::Plan& plan, const PlanReport& report,
                    const ir::Target& target) {
  json classes = json::object();
  for (const ClassCost& cost : report.classes) {
    classes[cost.op_class] = CostJson(cost);
    classes[cost.op_class]["steps"] = cost.steps;
  }
  json steps = json::array();
  for (const StepCost& cost : report.steps) {
    const codegen::Step& step = plan.steps[cost.step];
    json entry = CostJson(cost);
    entry["name"] = step.name;
    entry["location"] = step.location.path;
    entry["source"] = ToString(step.location.source);
    entry["op_class"] = cost.op_class;
    entry["phase"] = PhaseName(cost.phase);
    entry["bound"] = BoundName(cost.bound);
    steps.push_back(std::move(entry));
  }
  return {{"target",
           {{"name", target.name},
            {"threads", target.threads},
            {"peak_gflops_f32", target.peak_gflops_f32},
            {"memory_gb_per_s", target.memory_gb_per_s}}},
          {"total", CostJson(report.total)},
          {"op_classes", std::move(classes)},
          {"steps", std::move(steps)},
          {"collectives",
           CollectivesJson(plan, CollectiveTimelineOf(plan, report))},
          {"planned_peak_bytes", plan.peak_bytes},
          {"planned_lower_bound_bytes", plan.lower_bound_bytes}};
}

std::string PlanPage(const codegen::Plan& plan, const ir::Graph& graph,
                     const PlanReport& report, const ir::Target& target,
                     const std::string& subject) {
  HtmlPage page;
  page.title = "Plan of " + subject;
  page.lead = TargetLine(target) + ".";
  const ClassCost& total = report.total;
  page.sections.push_back(TileSection(
      {{IsMeasured(report) ? "step, measured per kernel" : "step, estimated",
        fmt::format("{:.1f} ms", total.us() / 1e3),
        fmt::format("{} kernels and library calls", total.steps)},
       {"of the machine's limits", fmt::format("{:.0f} %", 100 * total.share()),
        fmt::format("{:.1f} ms at the limits", total.limit_us / 1e3)},
       {"moved", ShowBytes(total.bytes),
        fmt::format("{:.1f} GB/s", Giga(total.bytes, total.us()))},
       {"arithmetic", ShowCount(total.flops) + "FLOP",
        fmt::format("{:.1f} GFLOP/s", Giga(total.flops, total.us()))},
       {"planned memory", ShowBytes(plan.peak_bytes),
        "lower bound " + ShowBytes(plan.lower_bound_bytes)}}));
  page.sections.push_back(ClassBars(report));
  std::vector<std::vector<json>> classes;
  for (const ClassCost& cost : report.classes) {
    classes.push_back(Row({cost.op_class, cost.steps}, cost, total));
  }
  page.sections.push_back(
      CostTable("Op classes", {"class", "steps"}, std::move(classes)));
  page.sections.push_back(
      GraphSection("Kernels and library calls of the step",
                   "Each box is a kernel or library call; its width is its "
                   "time. A fusion shows its layers or its op count. Click a "
                   "row to open it, a fusion to see its ops.",
                   {{"", GraphView(graph, RunsOf(plan, report))}}));
  page.sections.push_back(
      MemorySection("Memory over the step",
                    "Hover over the dot to see the buffers at the peak.",
                    {TimelineView(plan, plan.name)}));
  page.sections.push_back(MemoryMapSection(
      "Memory layout",
      "Each box is a buffer: its width is its live range, its height its size, "
      "its position its offset in memory. Hover to see its name.",
      TimelineView(plan, plan.name)));
  std::vector<std::vector<json>> steps;
  for (const StepCost* cost : LongestSteps(report)) {
    const codegen::Step& step = plan.steps[cost->step];
    steps.push_back(Row({ToString(step.location), cost->op_class,
                         std::string(BoundName(cost->bound))},
                        *cost, total));
  }
  page.sections.push_back(CostTable("Steps, longest first",
                                    {"location", "class", "limited by"},
                                    std::move(steps)));
  return Render(page);
}

namespace {

using nlohmann::json;

json ThreadName(int stream) {
  return {{"ph", "M"},
          {"name", "thread_name"},
          {"pid", 0},
          {"tid", stream},
          {"args", {{"name", "stream " + std::to_string(stream)}}}};
}

json Event(const codegen::Step& step, const StepCost& cost, double start) {
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

json ChromeTrace(const codegen::Plan& plan, const PlanReport& report) {
  json events = json::array();
  events.push_back({{"ph", "M"},
                    {"name", "process_name"},
                    {"pid", 0},
                    {"args", {{"name", plan.name + " on " + plan.target}}}});
  const std::vector<double> starts = StartTimes(plan, report);
  int streams = 0;
  for (size_t i = 0; i < report.steps.size(); ++i) {
    const StepCost& cost = report.steps[i];
    const codegen::Step& step = plan.steps[cost.step];
    for (; streams <= step.stream; ++streams) {
      events.push_back(ThreadName(streams));
    }
    events.push_back(Event(step, cost, starts[i]));
  }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
}

}  // namespace fusor::inspect
