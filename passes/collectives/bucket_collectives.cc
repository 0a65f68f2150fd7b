// Each all-reduce has a latency, and overlaps with the backward pass:
//
//  1. Nodes that only an all-reduce waits for, e.g. a weight's gradient, run as
//     soon as possible, before the backward pass continues with earlier layers.
//     Nodes that need reduced gradients run last.
//  2. The estimated time of that order gives the time when each gradient is
//     ready.
//  3. PartitionGradients cuts them into buckets. Each bucket is one all_reduce
//     of several operands, or several collectives if gradients differ in dtype
//     or only some are sharded. A small minority, e.g. gradients of
//     normalisations, moves to the next bucket, but not to the last one,
//     because the step waits for it. The estimate may be off by a factor of
//     two, so RobustPartition minimizes the worst-case loss over several
//     computation speeds.
//
// Statistics that ranks exchange within the forward or backward pass block that
// pass at once. Nodes that lead to the next exchange run first, then nodes that
// need no pending exchange: a layer's weight gradient is computed while the
// sums of the normalisation below are communicated.

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/target/cost.h"
#include "passes/collectives/collective.h"
#include "passes/passes.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

constexpr char kBucketGradientsPass[] = "bucket_gradients";

// Returns true for a collective whose result the forward or backward pass
// needs.
bool IsExchange(const Graph& graph, const Node& node) {
  return node.HasTrait(ir::OpTrait::kCollective) && !IsSumOverRanks(node) &&
         !GathersParameters(graph, node);
}

// Order of nodes whose operands are ready.
enum class Urgency : uint8_t {
  kCollective,  // starts a collective, which runs asynchronously
  kExchange,    // the next exchange waits for it
  kGradient,    // only collectives wait for it, within kSoon
  kOther,
  kAfter,  // needs a reduced gradient
};

// Maximum number of costly kernels from a node, included, to a collective.
constexpr int kSoon = 2;

// At most 1 / kFew of a bucket's bytes is a small minority.
constexpr int64_t kFew = 16;

struct Priority {
  bool after = false;  // of urgency kAfter
  int exchanges = 0;   // that it depends on
  Urgency urgency = Urgency::kOther;
  int distance = 0;  // of kGradient: see kSoon
  auto operator<=>(const Priority&) const = default;
};

// Sets priorities that follow from operands, and counts the exchanges that each
// node depends on.
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
    if (IsExchange(graph, *node)) number[node->position()] = ++exchanges;
    if (IsSumOverRanks(*node) || GathersParameters(graph, *node)) {
      own = {.urgency = Urgency::kCollective};
    } else if (IsExchange(graph, *node)) {
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
        exchanged = exchanged || IsExchange(graph, *use.node) ||
                    user.urgency == Urgency::kExchange;
        distance = std::min(distance, user.distance);
      }
    }
    distance += TakesTime(node) ? 1 : 0;
    if (exchanged) {
      priorities[i].urgency = Urgency::kExchange;
    } else if (gradient && distance <= kSoon) {
      priorities[i].urgency = Urgency::kGradient;
      priorities[i].distance = distance;
    }
  }
  return priorities;
}

// Schedules by priority among nodes whose operands are ready, then by position.
void OrderByPriority(Graph& graph) {
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
  while (!ready.empty()) {
    const size_t at = ready.begin()->second;
    ready.erase(ready.begin());
    order.push_back(graph.nodes()[at].get());
    for (size_t reader : readers[at]) {
      if (--waiting[reader] == 0) ready.emplace(priorities[reader], reader);
    }
  }
  graph.Reorder(order);
}

bool AreAlike(const Node& a, const Node& b) {
  return &a.op() == &b.op() &&
         a.input(0)->type().dtype == b.input(0)->type().dtype;
}

class Bucketing {
 public:
  Bucketing(Graph& graph, PassContext& context)
      : graph_(graph), context_(context) {
    double now = 0;
    for (const auto& node : graph.nodes()) {
      if (IsSumOverRanks(*node)) {
        sums_.push_back(node.get());
        ready_.push_back({now, node->input(0)->type().num_bytes()});
      }
      now += NodeSeconds(*node, context.target().target());
    }
  }

  void Join() {
    if (sums_.empty()) return;
    const PassOptions& options = context_.options();
    BucketPolicy policy = options.buckets;
    for (const Node* sum : sums_) {
      policy.element_bytes = std::min(
          policy.element_bytes, ir::DTypeSize(sum->input(0)->type().dtype));
    }
    int64_t collectives = 0;
    const CollectiveCost cost = options.shard_optimizer
                                    ? options.collective_cost.Half()
                                    : options.collective_cost;
    const std::vector<GradientBucket> buckets =
        RobustPartition(ready_, cost, policy);
    std::vector<Node*> late;
    for (size_t b = 0; b < buckets.size(); ++b) {
      const GradientBucket& bucket = buckets[b];
      Record(bucket);
      std::vector<Node*> sums = std::exchange(late, {});
      sums.insert(sums.end(), sums_.begin() + bucket.first,
                  sums_.begin() + bucket.last);
      const int64_t bytes = Bytes(sums);
      for (const std::vector<Node*>& part : Parts(sums)) {
        if (b + 2 < buckets.size() && Bytes(part) * kFew <= bytes) {
          late.insert(late.end(), part.begin(), part.end());
          continue;
        }
        if (part.size() > 1) JoinCollectives(graph_, part);
        ++collectives;
      }
    }
    context_.counters()["gradient_buckets"] = collectives;
  }

 private:
  // Groups sums by op and dtype.
  static std::vector<std::vector<Node*>> Parts(const std::vector<Node*>& sums) {
    std::vector<std::vector<Node*>> parts;
    for (Node* sum : sums) {
      auto part = std::find_if(parts.begin(), parts.end(),
                               [&](auto& p) { return AreAlike(*p[0], *sum); });
      if (part == parts.end()) part = parts.insert(part, {{}});
      part->push_back(sum);
    }
    return parts;
  }

  static int64_t Bytes(const std::vector<Node*>& sums) {
    int64_t bytes = 0;
    for (const Node* sum : sums) bytes += sum->input(0)->type().num_bytes();
    return bytes;
  }

  void Record(const GradientBucket& bucket) {
    context_.Record({.pass = kBucketGradientsPass,
                     .subject = sums_[bucket.first]->output()->name(),
                     .accepted = true,
                     .reason = fmt::format(
                         "{} gradient{}, {} bytes, ready at {:.3f} ms, "
                         "all-reduced at {:.3f} ms",
                         bucket.last - bucket.first,
                         bucket.last - bucket.first == 1 ? "" : "s",
                         bucket.bytes, bucket.ready * 1e3, bucket.end * 1e3)});
  }

  Graph& graph_;
  PassContext& context_;
  std::vector<Node*> sums_;  // of one gradient each, in order of time
  std::vector<ReadyGradient> ready_;
};

// Returns, by position, the bucket whose results a node reads, directly or
// through other kernels; null for none.
std::vector<const Node*> BucketsRead(const Graph& graph) {
  std::vector<const Node*> buckets(graph.nodes().size(), nullptr);
  for (const auto& node : graph.nodes()) {
    if (node->HasTrait(ir::OpTrait::kCollective)) continue;
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

// Joins the all-gathers of shards that the updates of one bucket write, and
// before them the all-gathers of each rank's norms.
void JoinGathers(Graph& graph) {
  const std::vector<const Node*> buckets = BucketsRead(graph);
  // Keyed by the bucket's position. Scalars are separate from shards, which
  // depend on them.
  std::map<std::pair<int, bool>, std::vector<Node*>> groups;
  for (const auto& node : graph.nodes()) {
    if (!IsExchange(graph, *node)) continue;
    const Node* producer = node->input(0)->producer();
    if (producer == nullptr) continue;
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
}

// --- All-gathers of parameters -----------------------------------------------

struct Gather {
  Node* node;
  double needed = 0;  // seconds from the start of the step
  int64_t bytes = 0;  // gathered, of all ranks
};

// Sorts gathers by the first non-view node that reads them.
std::vector<Gather> InOrderOfNeed(const Graph& graph, const ir::Target& target,
                                  double& end) {
  std::vector<Gather> gathers;
  std::unordered_map<const Value*, Node*> of;  // results and their views
  std::unordered_map<const Node*, bool> found;
  end = 0;
  for (const auto& node : graph.nodes()) {
    if (GathersParameters(graph, *node)) {
      of[node->output()] = node.get();
      continue;
    }
    for (const Value* operand : node->inputs()) {
      const auto gathered = of.find(operand);
      if (gathered == of.end()) continue;
      Node* gather = gathered->second;
      if (!TakesTime(*node)) {
        of[node->output()] = gather;
      } else if (!found[gather]) {
        found[gather] = true;
        gathers.push_back({gather, end, gather->output()->type().num_bytes()});
      }
    }
    end += NodeSeconds(*node, target);
  }
  // Gathers that are only written to state.
  for (const auto& node : graph.nodes()) {
    if (!GathersParameters(graph, *node) || found[node.get()]) continue;
    gathers.push_back({node.get(), end, node->output()->type().num_bytes()});
  }
  return gathers;
}

// Partitions them from the end; returns the buckets in the order of need.
std::vector<std::vector<Gather>> Cut(const std::vector<Gather>& gathers,
                                     double end, const PassOptions& options) {
  std::vector<ReadyGradient> mirrored;
  BucketPolicy policy = options.buckets;
  for (size_t i = gathers.size(); i-- > 0;) {
    mirrored.push_back({end - gathers[i].needed, gathers[i].bytes});
    policy.element_bytes =
        std::min(policy.element_bytes,
                 ir::DTypeSize(gathers[i].node->output()->type().dtype));
  }
  const std::vector<GradientBucket> cuts =
      RobustPartition(mirrored, options.collective_cost.Half(), policy);
  const auto count = static_cast<ptrdiff_t>(gathers.size());
  std::vector<std::vector<Gather>> buckets;
  for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
    buckets.emplace_back(gathers.begin() + (count - cut->last),
                         gathers.begin() + (count - cut->first));
  }
  return buckets;
}

// Joins a bucket into one collective per dtype.
std::vector<Node*> Join(Graph& graph, const std::vector<Gather>& bucket) {
  std::vector<std::vector<Node*>> alike;
  for (const Gather& gather : bucket) {
    const auto same = std::find_if(alike.begin(), alike.end(), [&](auto& n) {
      return n[0]->output()->type().dtype ==
             gather.node->output()->type().dtype;
    });
    if (same == alike.end()) {
      alike.push_back({gather.node});
    } else {
      same->push_back(gather.node);
    }
  }
  std::vector<Node*> joined;
  for (std::vector<Node*>& nodes : alike) {
    joined.push_back(nodes.size() == 1 ? nodes[0]
                                       : JoinCollectives(graph, nodes));
  }
  return joined;
}

void Record(const std::vector<Gather>& bucket, PassContext& context) {
  int64_t bytes = 0;
  for (const Gather& gather : bucket) bytes += gather.bytes;
  context.Record(
      {.pass = kBucketGradientsPass,
       .subject = bucket[0].node->output()->name(),
       .accepted = true,
       .reason = fmt::format("{} parameter{}, {} bytes, required at {:.3f} ms",
                             bucket.size(), bucket.size() == 1 ? "" : "s",
                             bytes, bucket[0].needed * 1e3)});
}

// Buckets the all_gathers of parameters at the start of the graph
// (GathersParameters) and sorts them in the order of need. Uses the partition
// for gradients with time reversed: a collective that must end when its first
// parameter is needed corresponds to one that starts when its last gradient is
// ready.
void BucketGathers(Graph& graph, PassContext& context) {
  double end = 0;
  const std::vector<Gather> gathers =
      InOrderOfNeed(graph, context.target().target(), end);
  if (gathers.empty()) return;
  std::vector<Node*> order;
  for (const std::vector<Gather>& bucket :
       Cut(gathers, end, context.options())) {
    Record(bucket, context);
    const std::vector<Node*> joined = Join(graph, bucket);
    order.insert(order.end(), joined.begin(), joined.end());
  }
  context.counters()["parameter_buckets"] += static_cast<int64_t>(order.size());
  for (const auto& node : graph.nodes()) {
    if (!GathersParameters(graph, *node)) order.push_back(node.get());
  }
  graph.SortTopologically(order);
}

std::vector<const Node*> Order(const Graph& graph) {
  std::vector<const Node*> order;
  for (const auto& node : graph.nodes()) order.push_back(node.get());
  return order;
}

}  // namespace

bool BucketGradients(Graph& graph, PassContext& context) {
  if (context.options().world_size <= 1) return false;
  const bool collectives = std::any_of(
      graph.nodes().begin(), graph.nodes().end(), [](const auto& node) {
        return node->HasTrait(ir::OpTrait::kCollective);
      });
  if (!collectives) return false;
  const std::vector<const Node*> before = Order(graph);
  OrderByPriority(graph);
  Bucketing(graph, context).Join();
  JoinGathers(graph);
  BucketGathers(graph, context);
  return Order(graph) != before;
}

}  // namespace fusor::passes
