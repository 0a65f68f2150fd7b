#pragma once

// Metrics of a comparison: the data behind its table, JSON and HTML page.

#include <map>
#include <string>
#include <vector>

#include "tools/inspect/compare/comparison.h"
#include "tools/inspect/report/graph_view.h"
#include "tools/inspect/report/plan_report.h"

namespace fusor::inspect {

// The rewrites of one kind that a pass made, or rejected for one reason.
struct RewriteCount {
  std::string pass;
  std::string reason;    // kind of rewrite, or rejection reason
  int64_t count = 0;     // distinct Decision::subject
  int64_t saved_ns = 0;  // largest estimated saving of one rewrite
  // Model locations by descending estimated saving, then decision order.
  std::vector<std::string> places;
};

struct StepTime {
  double median_ms = 0;
  double low_ms = 0;  // first and third quartile
  double high_ms = 0;
  // Time of the first variant / time of this one: median and quartiles over
  // rounds. Above 1: this one is faster.
  double ratio = 1, ratio_low = 1, ratio_high = 1;
};

struct VariantMetrics {
  std::string name;
  std::map<std::string, int64_t> counts;  // see CountNames
  PlanReport costs;
  CollectiveTimeline communication;  // estimated; for several ranks
  StepTime time;
  std::vector<KernelCount> kernels;
  std::vector<RewriteCount> made;      // by pattern passes
  std::vector<RewriteCount> rejected;  // most frequent first
};

struct CountName {
  std::string key;    // of JSON
  std::string label;  // for text output
  bool bytes = false;
};
// Returns the keys of VariantMetrics::counts with their labels, in the order of
// the report's rows.
const std::vector<CountName>& CountNames();

// Differences of all values of one kind against the first variant.
struct KindSummary {
  ValueKind kind = ValueKind::kOutput;
  int64_t values = 0;
  int64_t identical = 0;  // bitwise
  double max_abs = 0, max_relative = 0, relative = 0, max_ulp = 0;
};

std::vector<VariantMetrics> MetricsOf(const Comparison& comparison);

// Returns one summary per kind that occurs, in order of kind.
std::vector<KindSummary> Summarize(const VariantRun& run);
// Returns "bit-identical: loss, 161 gradients, 267 state outputs, 312
// intermediates", or which kinds are identical and how many values of the
// others differ. Empty if no numbers were compared.
std::string IdentityLine(const VariantRun& run);

// Returns "identical on all 4 ranks", or "differing values per rank: 31, 31,
// 29, 30". Empty with one rank.
std::string RanksLine(const VariantRun& run);

// Returns the values that differ, by descending TensorDifference::relative.
std::vector<ValueDifference> WorstFirst(const VariantRun& run);

}  // namespace fusor::inspect
