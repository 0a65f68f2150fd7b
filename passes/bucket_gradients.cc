// Sums over ranks cost a latency each, and run beside the backward pass:
//
// 1. What only a sum waits for - a weight's gradient - runs as soon as it can,
//    before the pass goes on to the layers below; what needs sums runs last.
// 2. The modelled time of that order says when each gradient is ready.
// 3. PartitionGradients cuts them into buckets, each of which is one all_reduce
//    of several operands, or two where gradients differ in dtype. The model may
//    be off by a factor of two: of the best partitions for other paces of the
//    computation that is taken which is nowhere far from the best.
//
// Statistics that ranks exchange within the pass are waited for at once. What
// leads to the next exchange goes first, then what needs none of those under
// way: a layer's weight gradient is computed while the sums of the
// normalisation below travel.

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "ir/convolution.h"
#include "ir/cost.h"
#include "ir/op.h"
#include "passes/collective.h"
#include "passes/passes.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

constexpr char kPass[] = "bucket_gradients";

// Of values that the pass itself goes on with.
bool IsExchange(const Node& node) {
  return IsCollective(node) && !IsSumOverRanks(node);
}

// Kernels and library calls; the rest is free.
bool IsCostly(const Node& node) {
  return node.body() != nullptr || node.op().fusion == ir::FusionKind::kLibrary;
}

// When a node is to run, among those that can.
enum class Urgency : uint8_t {
  kCollective,  // starts it, and goes on
  kExchange,    // the next exchange waits for it
  kGradient,    // only collectives wait for it, and soon
  kOther,
  kAfter,  // needs the sum of a gradient
};

// Kernels from a node to the next collective, itself included.
constexpr int kSoon = 2;

struct Priority {
  bool after = false;  // of urgency kAfter
  int exchanges = 0;   // that it waits for
  Urgency urgency = Urgency::kOther;
  int distance = 0;  // of a gradient: see kSoon
  auto operator<=>(const Priority&) const = default;
};

// Urgency by what a node needs, and how many exchanges that includes.
void FollowOperands(const Graph& graph, std::vector<Priority>& priorities) {
  int exchanges = 0;
  std::vector<int> number(graph.nodes().size(), 0);
  for (const auto& node : graph.nodes()) {
    Priority& own = priorities[node->position()];
    for (const Value* operand : node->inputs()) {
      const Node* producer = operand->producer();
      if (producer == nullptr) continue;
      const Priority& other = priorities[producer->position()];
      if (IsSumOverRanks(*producer) || other.after) own.after = true;
      own.exchanges = std::max(
          {own.exchanges, other.exchanges, number[producer->position()]});
    }
    if (IsExchange(*node)) number[node->position()] = ++exchanges;
    if (IsSumOverRanks(*node)) {
      own = {.urgency = Urgency::kCollective};
    } else if (IsExchange(*node)) {
      own = {.after = own.after, .urgency = Urgency::kCollective};
    } else if (own.after) {
      own.urgency = Urgency::kAfter;
    }
  }
}

std::vector<Priority> Priorities(const Graph& graph) {
  const size_t n = graph.nodes().size();
  std::vector<Priority> priorities(n);
  FollowOperands(graph, priorities);
  std::set<const Value*> outputs;
  for (const ir::Output& output : graph.outputs()) outputs.insert(output.value);
  for (size_t i = n; i-- > 0;) {
    const Node& node = *graph.nodes()[i];
    if (priorities[i].urgency != Urgency::kOther) continue;
    bool gradient = true;
    bool exchanged = false;
    int distance = kSoon;
    for (size_t r = 0; r < node.num_outputs(); ++r) {
      const Value* value = node.output(r);
      gradient = gradient && !outputs.contains(value);
      for (const ir::Use& use : value->uses()) {
        const Priority& user = priorities[use.node->position()];
        gradient = gradient && (user.urgency == Urgency::kCollective ||
                                user.urgency == Urgency::kGradient);
        exchanged = exchanged || IsExchange(*use.node) ||
                    user.urgency == Urgency::kExchange;
        distance = std::min(distance, user.distance);
      }
    }
    distance += IsCostly(node) ? 1 : 0;
    if (exchanged) {
      priorities[i].urgency = Urgency::kExchange;
    } else if (gradient && distance <= kSoon) {
      priorities[i].urgency = Urgency::kGradient;
      priorities[i].distance = distance;
    }
  }
  return priorities;
}

// By priority among nodes whose operands are there, and by place. True when
// that moved one.
bool OrderByPriority(Graph& graph) {
  const std::vector<Priority> priorities = Priorities(graph);
  const size_t n = graph.nodes().size();
  std::vector<size_t> waiting(n, 0);
  std::vector<std::vector<size_t>> readers(n);
  std::set<std::pair<Priority, size_t>> ready;
  for (const auto& node : graph.nodes()) {
    const size_t at = node->position();
    for (const Value* operand : node->inputs()) {
      if (operand->producer() == nullptr) continue;
      readers[operand->producer()->position()].push_back(at);
      ++waiting[at];
    }
    if (waiting[at] == 0) ready.emplace(priorities[at], at);
  }
  std::vector<Node*> order;
  bool moved = false;
  while (!ready.empty()) {
    const size_t at = ready.begin()->second;
    ready.erase(ready.begin());
    moved = moved || at != order.size();
    order.push_back(graph.nodes()[at].get());
    for (size_t reader : readers[at]) {
      if (--waiting[reader] == 0) ready.emplace(priorities[reader], reader);
    }
  }
  if (moved) graph.Reorder(order);
  return moved;
}

// By the target's limits.
double Seconds(const Node& node, const ir::Target& target) {
  if (!IsCostly(node)) return 0;
  if (node.attrs().Has("algorithm") &&
      node.attrs().String("algorithm") == "winograd") {
    return 1e-9 * static_cast<double>(ir::WinogradNs(node, target));
  }
  const auto memory =
      static_cast<double>(ir::KernelNs(ir::NodeBytes(node), target));
  const bool narrow =
      node.num_inputs() > 0 && ir::DTypeSize(node.input(0)->type().dtype) == 2;
  const double peak = narrow ? target.peak_gflops_16 : target.peak_gflops_f32;
  const double arithmetic =
      2 * static_cast<double>(ir::NodeMacs(node)) / std::max(peak, 1.0);
  return 1e-9 * std::max(memory, arithmetic);
}

// When the last of these buckets is summed.
double EndOf(std::span<const GradientBucket> buckets,
             std::span<const ReadyGradient> gradients,
             const CollectiveCost& cost) {
  double end = 0;
  for (const GradientBucket& bucket : buckets) {
    end = std::max(end, gradients[bucket.last - 1].ready) +
          cost.Seconds(bucket.bytes);
  }
  return end;
}

// How many times as long as modelled the computation may take; what the model
// says comes first.
constexpr double kPaces[] = {1, 0.7, 1.4, 0.5, 2};
constexpr double kWorthwhile = 0.999;  // of what is lost

std::vector<ReadyGradient> AtPace(std::span<const ReadyGradient> gradients,
                                  double pace) {
  std::vector<ReadyGradient> paced(gradients.begin(), gradients.end());
  for (ReadyGradient& gradient : paced) gradient.ready *= pace;
  return paced;
}

// The best partition at one pace may be bad at another: where a link is slower
// than the computation, each moment that the first bucket waits is lost. Of the
// best at each pace it is the one that loses least where it loses most.
std::vector<GradientBucket> SturdyPartition(
    std::span<const ReadyGradient> gradients, const CollectiveCost& cost,
    const BucketPolicy& policy) {
  std::vector<GradientBucket> sturdy;
  double least = std::numeric_limits<double>::infinity();
  for (const double pace : kPaces) {
    const auto buckets =
        PartitionGradients(AtPace(gradients, pace), cost, policy);
    double loss = 0;
    for (const double other : kPaces) {
      const auto paced = AtPace(gradients, other);
      const double best =
          EndOf(PartitionGradients(paced, cost, policy), paced, cost);
      loss = std::max(loss, EndOf(buckets, paced, cost) / best);
    }
    if (loss >= kWorthwhile * least) continue;
    least = loss;
    sturdy = buckets;
  }
  double end = 0;
  for (GradientBucket& bucket : sturdy) {
    bucket.ready = gradients[bucket.last - 1].ready;
    bucket.start = std::max(end, bucket.ready);
    bucket.end = end = bucket.start + cost.Seconds(bucket.bytes);
  }
  return sturdy;
}

bool AreAlike(const Node& a, const Node& b) {
  return &a.op() == &b.op() &&
         a.input(0)->type().dtype == b.input(0)->type().dtype;
}

// One collective in the place of the last.
void JoinCollectives(Graph& graph, const std::vector<Node*>& nodes) {
  std::vector<Value*> operands;
  std::vector<std::string> names;
  for (const Node* node : nodes) {
    operands.push_back(node->input(0));
    names.push_back(node->output()->name());
  }
  Node* joined = graph.AddNode(nodes[0]->op_name(), operands, nodes[0]->attrs(),
                               nodes[0]->location(), nodes.back());
  for (size_t i = 0; i < nodes.size(); ++i) {
    graph.ReplaceAllUses(nodes[i]->output(), joined->output(i));
  }
  graph.EraseAll(nodes);
  graph.RenameResults(joined, std::move(names));
}

class Buckets {
 public:
  Buckets(Graph& graph, PassContext& context)
      : graph_(graph), context_(context) {
    double now = 0;
    for (const auto& node : graph.nodes()) {
      if (IsSumOverRanks(*node)) {
        sums_.push_back(node.get());
        ready_.push_back({now, node->input(0)->type().num_bytes()});
      }
      now += Seconds(*node, context.target().target());
    }
  }

  bool Join() {
    if (sums_.empty()) return false;
    const PassOptions& options = context_.options();
    BucketPolicy policy = options.buckets;
    for (const Node* sum : sums_) {
      policy.element_bytes = std::min(
          policy.element_bytes, ir::DTypeSize(sum->input(0)->type().dtype));
    }
    int64_t collectives = 0;
    bool joined = false;
    for (const GradientBucket& bucket :
         policy.rule == BucketRule::kExact
             ? SturdyPartition(ready_, options.collective_cost, policy)
             : PartitionGradients(ready_, options.collective_cost, policy)) {
      std::vector<std::vector<Node*>> parts;  // by op and dtype
      for (int i = bucket.first; i < bucket.last; ++i) {
        auto part = std::find_if(parts.begin(), parts.end(), [&](auto& p) {
          return AreAlike(*p[0], *sums_[i]);
        });
        if (part == parts.end()) part = parts.insert(part, {{}});
        part->push_back(sums_[i]);
      }
      const std::string first = sums_[bucket.first]->output()->name();
      for (const std::vector<Node*>& part : parts) {
        if (part.size() > 1) JoinCollectives(graph_, part);
        joined = joined || part.size() > 1;
        ++collectives;
      }
      context_.Record(
          {.pass = kPass,
           .subject = first,
           .accepted = true,
           .reason = fmt::format(
               "{} gradient{}, {} bytes, ready at {:.3f} ms, summed at {:.3f} "
               "ms",
               bucket.last - bucket.first,
               bucket.last - bucket.first == 1 ? "" : "s", bucket.bytes,
               bucket.ready * 1e3, bucket.end * 1e3)});
    }
    context_.counters()["gradient_buckets"] = collectives;
    return joined;
  }

 private:
  Graph& graph_;
  PassContext& context_;
  std::vector<Node*> sums_;  // of one gradient each, in the order of time
  std::vector<ReadyGradient> ready_;
};

// By position, the bucket whose tensors a node reads, itself or by way of other
// kernels; null for none.
std::vector<const Node*> BucketsRead(const Graph& graph) {
  std::vector<const Node*> buckets(graph.nodes().size(), nullptr);
  for (const auto& node : graph.nodes()) {
    if (IsCollective(*node)) continue;
    const Node*& bucket = buckets[node->position()];
    for (const Value* operand : node->inputs()) {
      const Node* producer = operand->producer();
      if (bucket != nullptr || producer == nullptr ||
          operand->type().num_elements() == 1) {
        continue;
      }
      bucket =
          IsSumOverRanks(*producer) ? producer : buckets[producer->position()];
    }
  }
  return buckets;
}

// The parts that updates of one bucket leave are gathered together, and so are,
// before them, the norms that each rank has of its parts.
bool JoinGathers(Graph& graph) {
  const std::vector<const Node*> buckets = BucketsRead(graph);
  // By the bucket's position; numbers apart from parts, which wait for them.
  std::map<std::pair<int, bool>, std::vector<Node*>> groups;
  for (const auto& node : graph.nodes()) {
    if (!IsExchange(*node) || node->input(0)->producer() == nullptr) continue;
    const Node* producer = node->input(0)->producer();
    const Node* bucket = buckets[producer->position()];
    if (bucket == nullptr) continue;
    const bool number = node->input(0)->type().num_elements() == 1;
    groups[{bucket->position(), number}].push_back(node.get());
  }
  bool joined = false;
  for (const auto& [group, gathers] : groups) {
    if (gathers.size() < 2) continue;
    JoinCollectives(graph, gathers);
    joined = true;
  }
  if (joined) graph.SortTopologically();
  return joined;
}

}  // namespace

bool BucketGradients(Graph& graph, PassContext& context) {
  if (context.options().world_size <= 1) return false;
  const bool collectives =
      std::any_of(graph.nodes().begin(), graph.nodes().end(),
                  [](const auto& node) { return IsCollective(*node); });
  if (!collectives) return false;
  bool changed = OrderByPriority(graph);
  changed |= Buckets(graph, context).Join();
  changed |= JoinGathers(graph);
  return changed;
}

}  // namespace fusor::passes
