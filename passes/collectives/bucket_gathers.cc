#include "passes/collectives/bucket_gathers.h"

#include <fmt/core.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "ir/target/node_time.h"
#include "passes/collectives/collective.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

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
      if (!IsCostly(*node)) {
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
      {.pass = "bucket_gradients",
       .subject = bucket[0].node->output()->name(),
       .accepted = true,
       .reason = fmt::format("{} parameter{}, {} bytes, required at {:.3f} ms",
                             bucket.size(), bucket.size() == 1 ? "" : "s",
                             bytes, bucket[0].needed * 1e3)});
}

}  // namespace

bool BucketGathers(Graph& graph, PassContext& context) {
  double end = 0;
  const std::vector<Gather> gathers =
      InOrderOfNeed(graph, context.target().target(), end);
  if (gathers.empty()) return false;
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
  return true;
}

}  // namespace fusor::passes
