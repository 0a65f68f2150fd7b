#include "tools/inspect/scaling/scale_model.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "ir/support/error.h"

namespace fusor::inspect {

namespace {

class TimelineBuilder {
 public:
  TimelineBuilder(const codegen::Plan& plan, const ir::Graph& graph,
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
  // Returns the costs in node order.
  std::vector<const StepCost*> InGraphOrder(const codegen::Plan& plan,
                                            const PlanReport& report) const {
    std::unordered_map<std::string, size_t> position;
    for (const auto& node : graph_.nodes()) {
      position[node->output()->name()] = node->position();
    }
    std::vector<std::pair<size_t, const StepCost*>> order;
    for (const StepCost& cost : report.steps) {
      order.emplace_back(position.at(plan.steps[cost.step].name), &cost);
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

StepTimeline TimelineOf(const codegen::Plan& plan, const ir::Graph& graph,
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

namespace {

using passes::BucketPolicy;
using passes::CollectiveCost;
using passes::GradientBucket;
using passes::ReadyGradient;

// Latency of a tree's hop inside a node, in NCCL's model.
constexpr double kTreeNodeHopUs = 4;

// Returns the expected maximum of n standard normal numbers: Blom's quantile,
// by Abramowitz and Stegun's formula 26.2.23.
double ExpectedGreatest(int64_t n) {
  if (n <= 1) return 0;
  const double p =
      (static_cast<double>(n) - 0.375) / (static_cast<double>(n) + 0.25);
  const double q = std::sqrt(-2 * std::log(1 - p));
  return q - (2.515517 + 0.802853 * q + 0.010328 * q * q) /
                 (1 + 1.432788 * q + 0.189269 * q * q + 0.001308 * q * q * q);
}

std::vector<ReadyGradient> WireGradients(const StepTimeline& timeline,
                                         int64_t element_bytes) {
  std::vector<ReadyGradient> gradients;
  for (const StepTimeline::Gradient& g : timeline.gradients) {
    gradients.push_back({g.ready, g.elements * element_bytes});
  }
  return gradients;
}

// Returns when each gradient's parameter is gathered, from the start of the
// forward pass. Raises `delay` to the time that the pass waits for them.
// Mirrors the backward pass: the forward pass needs a parameter at the mirrored
// time at which its gradient is ready. Buckets gathers like gradients.
std::vector<double> GatherEnds(const StepTimeline& timeline,
                               const CollectiveCost& half,
                               const BucketPolicy& policy, double& delay) {
  const double length = timeline.backward - timeline.forward;
  std::vector<ReadyGradient> mirrored =
      WireGradients(timeline, policy.element_bytes);
  for (ReadyGradient& g : mirrored) {
    const double needed =
        length > 0 ? timeline.forward * (timeline.backward - g.ready) / length
                   : 0;
    g.ready = std::max(0.0, timeline.forward - needed);
  }
  const auto buckets = passes::PartitionGradients(mirrored, half, policy);
  std::vector<double> ends(mirrored.size());
  double end = 0;
  for (size_t b = buckets.size(); b-- > 0;) {
    end += half.Seconds(buckets[b].bytes);
    std::fill(ends.begin() + buckets[b].first, ends.begin() + buckets[b].last,
              end);
    delay = std::max(delay, end - (timeline.forward - buckets[b].ready));
  }
  return ends;
}

// Returns the buckets of a policy and the communication that is not overlapped.
ScalePrediction Communicate(const StepTimeline& timeline,
                            const CollectiveCost& cost,
                            const BucketPolicy& policy, bool sharded) {
  ScalePrediction result;
  result.buckets = passes::PartitionGradients(
      WireGradients(timeline, policy.element_bytes), cost, policy);
  result.not_overlapped =
      std::max(0.0, result.buckets.back().end - timeline.backward);
  if (sharded) {
    double delay = 0;
    const std::vector<double> ends = GatherEnds(timeline, cost, policy, delay);
    for (const GradientBucket& bucket : result.buckets) {
      result.gathered.push_back(ends[bucket.first]);
    }
    result.not_overlapped += delay;
  }
  return result;
}

ScalePrediction Communicate(const StepTimeline& timeline,
                            const ir::Cluster& cluster,
                            const ScaleOptions& options) {
  if (options.nodes * options.gpus == 1) return {};
  CollectiveCost cost = AllReduceCost(cluster, options.nodes, options.gpus);
  if (options.sharded) cost = cost.Half();
  return Communicate(timeline, cost, options.policy, options.sharded);
}

double UpdateSeconds(const StepTimeline& timeline,
                     const ScaleOptions& options) {
  return options.sharded ? timeline.update /
                               static_cast<double>(options.nodes * options.gpus)
                         : timeline.update;
}

// Returns the seconds by which the step exceeds its parts: by the measured node
// rate, or by waiting for the slowest rank.
double WaitingSeconds(const StepTimeline& timeline, const ir::Cluster& cluster,
                      const ScaleOptions& options, double step) {
  const int64_t ranks = options.nodes * options.gpus;
  if (options.node_rate <= 0) {
    return step * cluster.jitter * ExpectedGreatest(ranks);
  }
  ScaleOptions node = options;
  node.nodes = 1;
  const double model = timeline.backward +
                       Communicate(timeline, cluster, node).not_overlapped +
                       UpdateSeconds(timeline, node);
  const double measured =
      static_cast<double>(options.gpus * options.batch) / options.node_rate;
  return step * (measured / model - 1);
}

}  // namespace

CollectiveCost AllReduceCost(const ir::Cluster& cluster, int64_t nodes,
                             int64_t gpus) {
  const auto n = static_cast<double>(nodes * gpus);
  const auto hops = 2 * (n - 1);
  const bool network = nodes > 1;
  const double bytes_per_second =
      1e9 * (network ? cluster.network_gb_per_s
                     : cluster.NodeGbPerS(static_cast<int>(gpus)));
  const double network_hops =
      network ? 2.0 * static_cast<double>(nodes - 1) : 0;
  double latency_us = cluster.base_us +
                      (hops - network_hops) * cluster.node_hop_us +
                      network_hops * cluster.network_hop_us;
  if (network) latency_us *= cluster.network_latency_factor;
  CollectiveCost cost{{{latency_us * 1e-6, hops / n / bytes_per_second}}};
  if (network && cluster.tree_share > 0) {
    const double depth = std::floor(std::log2(static_cast<double>(nodes)));
    const double tree_us =
        cluster.base_us + 2 * (static_cast<double>(gpus - 1) * kTreeNodeHopUs +
                               depth * cluster.network_hop_us);
    cost.algorithms.push_back(
        {tree_us * 1e-6, 2 / (bytes_per_second * cluster.tree_share)});
  }
  return cost;
}

std::string_view LimitName(ScaleLimit limit) {
  switch (limit) {
    case ScaleLimit::kCompute:
      return "compute";
    case ScaleLimit::kCommunication:
      return "communication";
    case ScaleLimit::kInput:
      return "input";
  }
  return "";
}

ScalePrediction PredictScale(const StepTimeline& timeline,
                             const ir::Cluster& cluster,
                             const ScaleOptions& options) {
  FUSOR_ASSERT(options.nodes >= 1 && options.gpus >= 1 && options.batch >= 1,
               "{} x {} ranks of batch {}", options.nodes, options.gpus,
               options.batch);
  ScalePrediction result = Communicate(timeline, cluster, options);
  const double parts = timeline.backward + result.not_overlapped +
                       UpdateSeconds(timeline, options);
  result.waiting = WaitingSeconds(timeline, cluster, options, parts);
  result.step = parts + result.waiting;
  if (options.input_rate > 0) {
    const double fed =
        static_cast<double>(options.batch * options.gpus) / options.input_rate;
    result.starved = std::max(0.0, fed - result.step);
    result.step += result.starved;
  }
  const auto ranks = static_cast<double>(options.nodes * options.gpus);
  result.images_per_second =
      ranks * static_cast<double>(options.batch) / result.step;
  result.speedup = ranks * timeline.step() / result.step;
  const double most = std::max(result.not_overlapped, result.starved);
  if (most > 0.01 * result.step) {
    result.limit = result.starved > result.not_overlapped
                       ? ScaleLimit::kInput
                       : ScaleLimit::kCommunication;
  }
  return result;
}

std::vector<ScaleAlternative> Alternatives(const StepTimeline& timeline,
                                           const ir::Cluster& cluster,
                                           const ScaleOptions& options) {
  std::vector<ScaleAlternative> all;
  const auto add = [&](std::string name, const ScaleOptions& changed) {
    all.push_back(
        {std::move(name), changed, PredictScale(timeline, cluster, changed)});
  };
  add("chosen", options);
  for (const char* name : {"exact", "cap:25", "apex", "horovod", "one"}) {
    ScaleOptions changed = options;
    changed.policy = passes::ParseBucketPolicy("policy", name);
    changed.policy.element_bytes = options.policy.element_bytes;
    changed.policy.slack_seconds = options.policy.slack_seconds;
    if (passes::PolicyName(options.policy) == name) continue;
    add(fmt::format("buckets {}", name), changed);
  }
  ScaleOptions wire = options;
  wire.policy.element_bytes = 6 - options.policy.element_bytes;
  add(wire.policy.element_bytes == 2 ? "16-bit communication"
                                     : "fp32 communication",
      wire);
  ScaleOptions sharded = options;
  sharded.sharded = !options.sharded;
  add(sharded.sharded ? "sharded optimizer" : "no sharded optimizer", sharded);
  return all;
}

}  // namespace fusor::inspect
