#include "tools/inspect/compare/compare_metrics.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_map>

#include "codegen/compiler.h"
#include "ir/support/str.h"
#include "tools/inspect/report/traffic.h"

namespace fusor::inspect {
namespace {

using codegen::CompileReport;
using codegen::Plan;

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  const double part = at - static_cast<double>(below);
  return values[below] * (1 - part) + values[above] * part;
}

StepTime TimeOf(const VariantRun& base, const VariantRun& run) {
  StepTime time;
  time.median_ms = Quantile(run.step_ms, 0.5);
  time.low_ms = Quantile(run.step_ms, 0.25);
  time.high_ms = Quantile(run.step_ms, 0.75);
  std::vector<double> ratios;
  const size_t rounds = std::min(base.step_ms.size(), run.step_ms.size());
  for (size_t i = 0; i < rounds; ++i) {
    ratios.push_back(base.step_ms[i] / run.step_ms[i]);
  }
  if (ratios.empty()) return time;
  time.ratio = Quantile(ratios, 0.5);
  time.ratio_low = Quantile(ratios, 0.25);
  time.ratio_high = Quantile(ratios, 0.75);
  return time;
}

// Maps value names to model locations, including values inside fusions.
class Locations {
 public:
  explicit Locations(const ir::Graph& graph) { Add(graph); }

  // Returns the locations of a decision's subject, "%a + %b" or one name.
  // Returns the names of values that no longer exist.
  std::string Of(const std::string& subject) const {
    const size_t plus = subject.find(" + ");
    if (plus == std::string::npos) return One(subject);
    const std::string first = One(subject.substr(0, plus));
    const std::string second = One(subject.substr(plus + 3));
    return first == second ? first : first + " + " + second;
  }

 private:
  void Add(const ir::Graph& graph) {
    for (const auto& node : graph.nodes()) {
      for (size_t i = 0; i < node->num_outputs(); ++i) {
        of_.emplace(node->output(i)->name(), node->location().path);
      }
      if (node->body() != nullptr) Add(*node->body());
    }
  }

  std::string One(const std::string& name) const {
    const auto it = of_.find(name);
    return it == of_.end() || it->second.empty() ? "%" + name : it->second;
  }

  std::unordered_map<std::string, std::string> of_;
};

// Other passes choose layouts and libraries, which do not depend on fusion.
bool IsFusionPass(const std::string& pass) { return pass.starts_with("fuse"); }

// Counts decisions of fusion passes by pass and reason. Repeated decisions
// about the same values (Decision::subject) count once.
std::vector<RewriteCount> CountRewrites(const VariantRun& run, bool accepted) {
  const Locations locations(run.graph());
  std::map<std::pair<std::string, std::string>, RewriteCount> counts;
  std::map<std::pair<std::string, std::string>,
           std::vector<std::tuple<int64_t, size_t, std::string>>>
      places;
  std::set<std::tuple<std::string, std::string, std::string>> seen;
  const auto& decisions = run.report().decisions;
  for (size_t i = 0; i < decisions.size(); ++i) {
    const passes::Decision& decision = decisions[i];
    if (decision.accepted != accepted || !IsFusionPass(decision.pass)) continue;
    // The kernel counts already show what the general fusion pass merged.
    if (accepted && decision.pass == "fuse") continue;
    if (!seen.emplace(decision.pass, decision.reason, decision.subject)
             .second) {
      continue;
    }
    const auto key = std::pair(decision.pass, decision.reason);
    RewriteCount& count = counts[key];
    count.pass = decision.pass;
    count.reason = decision.reason;
    ++count.count;
    count.saved_ns = std::max(count.saved_ns, decision.saved_ns);
    places[key].emplace_back(-decision.saved_ns, i,
                             locations.Of(decision.subject));
  }
  std::vector<RewriteCount> list;
  for (auto& [key, count] : counts) {
    auto& found = places[key];
    std::sort(found.begin(), found.end());
    for (auto& [saved, order, place] : found) {
      if (std::find(count.places.begin(), count.places.end(), place) ==
          count.places.end()) {
        count.places.push_back(std::move(place));
      }
    }
    list.push_back(std::move(count));
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const RewriteCount& a, const RewriteCount& b) {
                     return a.count > b.count;
                   });
  return list;
}

std::map<std::string, int64_t> CountsOf(const VariantRun& run,
                                        const PlanReport& costs) {
  const CompileReport& report = run.report();
  const Plan& plan = run.plan();
  return {{"nodes", report.nodes_optimized},
          {"fusions", report.fusions},
          {"kernels", report.kernels},
          {"distinct_kernels", report.distinct_kernels},
          {"library_calls", report.library_calls},
          {"bytes_moved", report.bytes_moved},
          {"traffic_bytes", TrafficBytes(plan)},
          {"flops", costs.total.flops},
          {"state_bytes", StateOf(plan).bytes},
          {"planned_peak_bytes", plan.peak_bytes},
          {"planned_lower_bound_bytes", plan.lower_bound_bytes}};
}

}  // namespace

const std::vector<CountName>& CountNames() {
  static const std::vector<CountName> kNames = {
      {"kernels", "kernels per step"},
      {"distinct_kernels", "distinct kernels"},
      {"library_calls", "library calls per step"},
      {"bytes_moved", "operands and results, counted once", true},
      {"traffic_bytes", "memory traffic per step", true},
      {"flops", "floating-point operations"},
      {"planned_peak_bytes", "planned memory, peak", true},
      {"planned_lower_bound_bytes", "planned memory, lower bound", true},
      {"state_bytes", "parameters and other state", true},
  };
  return kNames;
}

std::vector<VariantMetrics> MetricsOf(const Comparison& comparison) {
  std::vector<VariantMetrics> facts;
  for (const VariantRun& run : comparison.variants) {
    VariantMetrics f;
    f.name = run.name;
    f.costs = ReportPlan(run.plan(), run.graph(), run.compiler(),
                         run.profile_ms, run.network);
    f.communication = CollectiveTimelineOf(
        run.plan(),
        ReportPlan(run.plan(), run.graph(), run.compiler(), {}, run.network));
    f.counts = CountsOf(run, f.costs);
    f.counts["gradient_buckets"] = f.communication.buckets();
    f.time = TimeOf(comparison.variants[0], run);
    f.kernels = CountKernels(run.graph());
    f.made = CountRewrites(run, true);
    f.rejected = CountRewrites(run, false);
    facts.push_back(std::move(f));
  }
  return facts;
}

std::vector<KindSummary> Summarize(const VariantRun& run) {
  std::map<ValueKind, KindSummary> by_kind;
  for (const ValueDifference& value : run.differences) {
    KindSummary& sum = by_kind[value.kind];
    const TensorDifference& d = value.difference;
    sum.kind = value.kind;
    ++sum.values;
    sum.identical += d.bit_identical() ? 1 : 0;
    sum.max_abs = std::max(sum.max_abs, d.max_abs);
    sum.max_relative = std::max(sum.max_relative, d.max_relative);
    sum.relative = std::max(sum.relative, d.relative);
    sum.max_ulp = std::max(sum.max_ulp, d.max_ulp);
  }
  std::vector<KindSummary> list;
  for (const auto& [kind, sum] : by_kind) list.push_back(sum);
  return list;
}

namespace {

std::string Counted(int64_t count, ValueKind kind) {
  std::string name(ValueKindName(kind));
  if (kind == ValueKind::kState) name = "state output";
  return fmt::format("{} {}{}", count, name, count == 1 ? "" : "s");
}

}  // namespace

std::string IdentityLine(const VariantRun& run) {
  std::string same, different;
  const auto append = [](std::string& list, const std::string& text) {
    if (!list.empty()) list += ", ";
    list += text;
  };
  for (const KindSummary& sum : Summarize(run)) {
    if (sum.identical == sum.values) {
      const bool loss = sum.kind == ValueKind::kOutput && sum.values == 1;
      append(same,
             loss ? run.differences[0].name : Counted(sum.values, sum.kind));
    } else {
      append(different, fmt::format("{} of {}", sum.values - sum.identical,
                                    Counted(sum.values, sum.kind)));
    }
  }
  std::string line;
  if (!same.empty()) line = "bit-identical: " + same;
  if (!different.empty()) {
    line += (line.empty() ? "different: " : "; different: ") + different;
  }
  return line;
}

std::string RanksLine(const VariantRun& run) {
  const std::vector<int64_t>& counts = run.different_on;
  if (counts.empty()) return "";
  const bool none = std::all_of(counts.begin(), counts.end(),
                                [](int64_t count) { return count == 0; });
  if (none) return fmt::format("identical on all {} ranks", counts.size());
  return "differing values per rank: " + Join(counts, ", ", [](int64_t count) {
           return std::to_string(count);
         });
}

std::vector<ValueDifference> WorstFirst(const VariantRun& run) {
  std::vector<ValueDifference> worst;
  for (const ValueDifference& value : run.differences) {
    if (!value.difference.bit_identical()) worst.push_back(value);
  }
  std::stable_sort(worst.begin(), worst.end(),
                   [](const ValueDifference& a, const ValueDifference& b) {
                     return a.difference.relative > b.difference.relative;
                   });
  return worst;
}

}  // namespace fusor::inspect
