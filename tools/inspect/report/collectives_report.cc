#include "tools/inspect/report/collectives_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "ir/shard.h"

namespace fusor::codegen {

using nlohmann::json;

namespace {

// Returns the buffers with state shards as of the start of the plan, and the
// results of kernels that read only such a buffer.
std::set<int> PartsOf(const Plan& plan) {
  std::set<int> parts;
  for (const PlanInput& input : plan.inputs) {
    if (ir::IsShard(input.attrs)) parts.insert(input.buffer);
  }
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::kLaunch && step.args.size() == 2 &&
        parts.contains(step.args[0])) {
      parts.insert(step.args[1]);
    }
  }
  return parts;
}

}  // namespace

int64_t Exchange::buckets() const {
  return std::count_if(collectives.begin(), collectives.end(),
                       [](const CollectiveSpan& span) { return span.sums; });
}

int64_t Exchange::bucket_bytes() const {
  int64_t bytes = 0;
  for (const CollectiveSpan& span : collectives) {
    bytes += span.sums ? span.bytes : 0;
  }
  return bytes;
}

double Exchange::communication_us() const {
  double us = 0;
  for (const CollectiveSpan& span : collectives) {
    us += span.end_us - span.start_us;
  }
  return us;
}

Exchange ExchangeOf(const Plan& plan, const PlanReport& report) {
  Exchange exchange;
  const std::vector<double> starts = StartTimes(plan, report);
  const std::set<int> parts = PartsOf(plan);
  for (size_t i = 0; i < starts.size(); ++i) {
    const StepCost& cost = report.steps[i];
    const double end = starts[i] + cost.us();
    exchange.end_us = std::max(exchange.end_us, end);
    const Step& step = plan.steps[cost.step];
    if (step.kind != StepKind::kCollective) continue;
    const LibraryCall& call = plan.calls[step.index];
    exchange.collectives.push_back(
        {.step = cost.step,
         .tensors = static_cast<int64_t>(call.results.size()),
         .bytes = CollectiveBytes(call),
         .start_us = starts[i],
         .end_us = end,
         .sums = call.op != ir::OpKind::kAllGather,
         .gathers_ahead = call.op == ir::OpKind::kAllGather &&
                          parts.contains(step.args[0])});
  }
  exchange.exposed_us = std::max(0.0, exchange.end_us - report.total.us());
  return exchange;
}

json CollectivesJson(const Plan& plan, const Exchange& exchange) {
  json list = json::array();
  for (const CollectiveSpan& span : exchange.collectives) {
    const Step& step = plan.steps[span.step];
    list.push_back(
        {{"op", step.op_class},
         {"name", step.name},
         {"tensors", span.tensors},
         {"dtype", DTypeName(plan.calls[step.index].results[0].dtype)},
         {"bytes", span.bytes},
         {"start_ms", span.start_us / 1e3},
         {"end_ms", span.end_us / 1e3}});
  }
  return list;
}

}  // namespace fusor::codegen
