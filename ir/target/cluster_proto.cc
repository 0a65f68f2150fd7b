#include "ir/support/error.h"
#include "ir/target/cluster.h"
#include "ir/target/cluster.pb.h"
#include "ir/target/descriptions.h"

namespace fusor::ir {

Cluster ParseCluster(std::string_view text, std::string_view source) {
  proto::ClusterSpec spec;
  ParseTextFormat(text, source, &spec);
  FUSOR_CHECK(!spec.name().empty(), kGraph, "{}: name is missing", source);
  FUSOR_CHECK(spec.node_size() > 0, kGraph, "{}: node is missing", source);
  Cluster cluster;
  int ranks = 1;
  for (const auto& node : spec.node()) {
    FUSOR_CHECK(node.ranks() > ranks, kGraph,
                "{}: node.ranks must grow from 2 on, got {} after {}", source,
                node.ranks(), ranks);
    CheckPositive(node.gb_per_s(), "node.gb_per_s", source);
    ranks = node.ranks();
    cluster.node.push_back({ranks, node.gb_per_s()});
  }
  CheckPositive(spec.network_gb_per_s(), "network_gb_per_s", source);
  CheckPositive(spec.network_latency_factor(), "network_latency_factor",
                source);
  CheckNotNegative(spec.base_us(), "base_us", source);
  CheckNotNegative(spec.node_hop_us(), "node_hop_us", source);
  CheckNotNegative(spec.network_hop_us(), "network_hop_us", source);
  CheckNotNegative(spec.tree_share(), "tree_share", source);
  CheckNotNegative(spec.jitter(), "jitter", source);
  cluster.name = spec.name();
  cluster.device = spec.device();
  cluster.network_gb_per_s = spec.network_gb_per_s();
  cluster.base_us = spec.base_us();
  cluster.node_hop_us = spec.node_hop_us();
  cluster.network_hop_us = spec.network_hop_us();
  cluster.network_latency_factor = spec.network_latency_factor();
  cluster.tree_share = spec.tree_share();
  cluster.jitter = spec.jitter();
  return cluster;
}

}  // namespace fusor::ir
