#pragma once

// What a comparison found, counted and sorted for people: the source of the
// table, the JSON and the page.

#include <map>
#include <string>
#include <vector>

#include "tools/inspect/compare/comparison.h"
#include "tools/inspect/report/collectives_report.h"
#include "tools/inspect/report/kernel_kinds.h"
#include "tools/inspect/report/plan_report.h"

namespace fusor::runtime {

// Rewrites of one kind that a pass made, or refused for one reason.
struct RewriteCount {
  std::string pass;
  std::string reason;    // what was made, or why it was refused
  int64_t count = 0;     // different places
  int64_t saved_ns = 0;  // modelled, of the best that was refused
  // Model locations, in the order of the model; of refused rewrites the one
  // that would have saved most first.
  std::vector<std::string> places;
};

struct StepTime {
  double median_ms = 0;
  double low_ms = 0;  // first and third quartile
  double high_ms = 0;
  // First variant's time by this one's, median of the rounds' ratios: above 1
  // this one is faster. With quartiles.
  double ratio = 1, ratio_low = 1, ratio_high = 1;
};

struct VariantMetrics {
  std::string name;
  std::map<std::string, int64_t> counts;  // see CountNames
  codegen::PlanReport costs;
  codegen::Exchange exchange;  // of several ranks, as modelled
  StepTime time;
  std::vector<codegen::KernelCount> kernels;
  std::vector<RewriteCount> made;     // by pattern passes
  std::vector<RewriteCount> refused;  // most frequent first
};

struct CountName {
  std::string key;    // of JSON
  std::string label;  // for people
  bool bytes = false;
};
// The rows of the comparison, in order.
const std::vector<CountName>& CountNames();

// Over all values of one kind, against the first variant.
struct KindSummary {
  ValueKind kind = ValueKind::kOutput;
  int64_t values = 0;
  int64_t identical = 0;  // bit for bit
  double max_abs = 0, max_relative = 0, relative = 0, max_ulp = 0;
};

std::vector<VariantMetrics> MetricsOf(const Comparison& comparison);

// By kind, those that occur.
std::vector<KindSummary> Summarize(const VariantRun& run);
// "bit-identical: loss, 161 gradients, 267 state outputs, 312 intermediates",
// or which of them are and how many of the others differ. Empty when no
// numbers were compared.
std::string IdentityLine(const VariantRun& run);

// "the same on all 4 ranks", or "values that differ, by rank: 31, 31, 29, 30".
// Empty with one rank.
std::string RanksLine(const VariantRun& run);

// Greatest relative difference first; values that are identical are left out.
std::vector<ValueDifference> WorstFirst(const VariantRun& run);

}  // namespace fusor::runtime
