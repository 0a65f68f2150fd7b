#include "tools/inspect/report/plan_report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "ir/library_fusion.h"
#include "ir/shard.h"
#include "ir/support/error.h"
#include "ir/target/conv_problem.h"
#include "tools/inspect/report/graph_view.h"

namespace fusor::inspect {

namespace {

// Returns microseconds. GB/s are bytes per nanosecond.
double UsPerBytes(int64_t bytes, double gb_per_s) {
  return static_cast<double>(bytes) / std::max(gb_per_s, 1e-9) / 1e3;
}

// Returns whether the node's arithmetic, or that of the product in its kernel,
// is of 16-bit floats.
bool IsSixteenBit(const ir::Node& node) {
  if (node.body() != nullptr) {
    for (const auto& inner : node.body()->nodes()) {
      if (inner->op().macs != nullptr) return IsSixteenBit(*inner);
    }
  }
  return node.num_inputs() > 0 &&
         ir::DTypeSize(node.input(0)->type().dtype) == 2;
}

// Returns the library's estimate for the chosen algorithm; 0 if there is none.
double LibraryUs(const ir::Node& node, const ir::TargetQueries& target) {
  if (!ir::ConvolutionOf(node).has_value()) return 0;
  for (const ir::LibraryCandidate& candidate : target.Candidates(node)) {
    if (candidate.algorithm ==
        ir::LibraryOp(node).attrs().String("algorithm")) {
      return static_cast<double>(candidate.modelled_ns) / 1e3;
    }
  }
  return 0;
}

class Reporter {
 public:
  Reporter(const codegen::Plan& plan, const ir::Graph& graph,
           const ir::TargetQueries& target,
           const passes::CollectiveCost& network)
      : plan_(plan),
        target_(target),
        network_(network),
        phases_(PhasesOf(graph)) {
    for (const auto& node : graph.nodes()) {
      nodes_[node->output()->name()] = node.get();
    }
  }

  StepCost Cost(int s) const {
    const codegen::Step& step = plan_.steps[s];
    const ir::Node& node = *nodes_.at(step.name);
    StepCost cost{.step = s, .op_class = step.op_class, .kind = NodeKind(node)};
    cost.bytes = step.bytes;
    cost.flops = step.flops;
    cost.phase = phases_[node.position()];
    if (ir::IsKernelFusion(node)) {
      cost.op_class += ", " + std::string(PhaseName(cost.phase));
    }
    if (step.kind == codegen::StepKind::kCollective) {
      ModelCollective(plan_.calls[step.index], cost);
    } else {
      Model(node, cost);
    }
    return cost;
  }

 private:
  // A ring's reduce_scatter and all_gather each take half of all_reduce.
  void ModelCollective(const codegen::LibraryCall& call, StepCost& cost) const {
    const double share = call.op == ir::OpKind::kAllReduce ? 1 : 0.5;
    cost.modelled_us = cost.limit_us =
        share * network_.Seconds(CollectiveBytes(call)) * 1e6;
    cost.bound = Bound::kNetwork;
  }

  void Model(const ir::Node& node, StepCost& cost) const {
    const ir::Target& target = target_.target();
    const double peak =
        IsSixteenBit(node) ? target.peak_gflops_16 : target.peak_gflops_f32;
    const double memory = UsPerBytes(cost.bytes, target.memory_gb_per_s);
    const double arithmetic = UsPerBytes(cost.flops, peak);
    const double launch = static_cast<double>(target.launch_overhead_ns) / 1e3;
    const double library = LibraryUs(node, target_);
    cost.limit_us = std::max(memory, arithmetic);
    cost.bound = cost.limit_us < launch ? Bound::kLaunch
                 : arithmetic > memory  ? Bound::kArithmetic
                                        : Bound::kMemory;
    cost.modelled_us =
        std::max(memory, library > 0 ? library : arithmetic) + launch;
  }

  const codegen::Plan& plan_;
  const ir::TargetQueries& target_;
  const passes::CollectiveCost& network_;
  std::vector<StepPhase> phases_;
  std::unordered_map<std::string, const ir::Node*> nodes_;
};

void Accumulate(const StepCost& step, ClassCost& sum) {
  ++sum.steps;
  sum.bytes += step.bytes;
  sum.flops += step.flops;
  sum.modelled_us += step.modelled_us;
  sum.limit_us += step.limit_us;
  if (step.measured_us >= 0) {
    sum.measured_us = std::max(sum.measured_us, 0.0) + step.measured_us;
  }
}

}  // namespace

std::string_view BoundName(Bound bound) {
  switch (bound) {
    case Bound::kArithmetic:
      return "arithmetic";
    case Bound::kMemory:
      return "memory";
    case Bound::kLaunch:
      return "launch";
    case Bound::kNetwork:
      return "network";
  }
  return "";
}

PlanReport ReportPlan(const codegen::Plan& plan, const ir::Graph& graph,
                      const ir::TargetQueries& target,
                      std::span<const double> measured_ms,
                      const passes::CollectiveCost& network) {
  FUSOR_ASSERT(measured_ms.empty() || measured_ms.size() == plan.steps.size(),
               "plan {}: {} times for {} steps", plan.name, measured_ms.size(),
               plan.steps.size());
  const Reporter reporter(plan, graph, target, network);
  PlanReport report;
  std::map<std::string, ClassCost> classes;
  report.total.op_class = "total";
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    StepCost cost = reporter.Cost(static_cast<int>(s));
    if (!measured_ms.empty()) cost.measured_us = measured_ms[s] * 1e3;
    ClassCost& of_class = classes[cost.op_class];
    of_class.op_class = cost.op_class;
    Accumulate(cost, of_class);
    if (cost.bound != Bound::kNetwork) Accumulate(cost, report.total);
    report.steps.push_back(std::move(cost));
  }
  for (auto& [name, cost] : classes) report.classes.push_back(std::move(cost));
  std::stable_sort(
      report.classes.begin(), report.classes.end(),
      [](const ClassCost& a, const ClassCost& b) { return a.us() > b.us(); });
  return report;
}

int64_t CollectiveBytes(const codegen::LibraryCall& call) {
  int64_t bytes = 0;
  const bool scatters = call.op == ir::OpKind::kReduceScatter;
  for (const ir::TensorType& type : scatters ? call.operands : call.results) {
    bytes += type.num_bytes();
  }
  return bytes;
}

std::vector<double> StartTimes(const codegen::Plan& plan,
                               const PlanReport& report) {
  std::vector<double> happened(plan.num_events, 0);  // per event
  std::vector<double> now;                           // per stream
  std::vector<double> starts;
  for (const StepCost& cost : report.steps) {
    const codegen::Step& step = plan.steps[cost.step];
    if (static_cast<int>(now.size()) <= step.stream)
      now.resize(step.stream + 1);
    double& clock = now[step.stream];
    for (int event : step.waits) clock = std::max(clock, happened[event]);
    starts.push_back(clock);
    clock += cost.us();
    if (step.records >= 0) happened[step.records] = clock;
  }
  return starts;
}

NodeRuns RunsOf(const codegen::Plan& plan, const PlanReport& report) {
  NodeRuns runs;
  for (const StepCost& cost : report.steps) {
    const codegen::Step& step = plan.steps[cost.step];
    const bool launch = step.kind == codegen::StepKind::kLaunch;
    runs[step.name] = {cost.us(),
                       launch ? plan.kernels[step.index].kernel.name : ""};
  }
  return runs;
}

using nlohmann::json;

namespace {

// Returns the buffers with state shards as of the start of the plan, and the
// results of kernels that read only such a buffer.
std::set<int> PartsOf(const codegen::Plan& plan) {
  std::set<int> parts;
  for (const codegen::PlanInput& input : plan.inputs) {
    if (ir::IsShard(input.attrs)) parts.insert(input.buffer);
  }
  for (const codegen::Step& step : plan.steps) {
    if (step.kind == codegen::StepKind::kLaunch && step.args.size() == 2 &&
        parts.contains(step.args[0])) {
      parts.insert(step.args[1]);
    }
  }
  return parts;
}

}  // namespace

int64_t CollectiveTimeline::buckets() const {
  return std::count_if(collectives.begin(), collectives.end(),
                       [](const CollectiveSpan& span) { return span.sums; });
}

int64_t CollectiveTimeline::bucket_bytes() const {
  int64_t bytes = 0;
  for (const CollectiveSpan& span : collectives) {
    bytes += span.sums ? span.bytes : 0;
  }
  return bytes;
}

double CollectiveTimeline::communication_us() const {
  double us = 0;
  for (const CollectiveSpan& span : collectives) {
    us += span.end_us - span.start_us;
  }
  return us;
}

CollectiveTimeline CollectiveTimelineOf(const codegen::Plan& plan,
                                        const PlanReport& report) {
  CollectiveTimeline communication;
  const std::vector<double> starts = StartTimes(plan, report);
  const std::set<int> parts = PartsOf(plan);
  for (size_t i = 0; i < starts.size(); ++i) {
    const StepCost& cost = report.steps[i];
    const double end = starts[i] + cost.us();
    communication.end_us = std::max(communication.end_us, end);
    const codegen::Step& step = plan.steps[cost.step];
    if (step.kind != codegen::StepKind::kCollective) continue;
    const codegen::LibraryCall& call = plan.calls[step.index];
    communication.collectives.push_back(
        {.step = cost.step,
         .tensors = static_cast<int64_t>(call.results.size()),
         .bytes = CollectiveBytes(call),
         .start_us = starts[i],
         .end_us = end,
         .sums = call.op != ir::OpKind::kAllGather,
         .gathers_ahead = call.op == ir::OpKind::kAllGather &&
                          parts.contains(step.args[0])});
  }
  communication.not_overlapped_us =
      std::max(0.0, communication.end_us - report.total.us());
  return communication;
}

json CollectivesJson(const codegen::Plan& plan,
                     const CollectiveTimeline& communication) {
  json list = json::array();
  for (const CollectiveSpan& span : communication.collectives) {
    const codegen::Step& step = plan.steps[span.step];
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

}  // namespace fusor::inspect
