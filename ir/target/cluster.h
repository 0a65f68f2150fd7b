#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fusor::ir {

// The interconnect of a cluster. Plain data from a description file, so that a
// prediction needs no cluster. Bandwidths are NCCL's bus bandwidths.
struct Cluster {
  struct Node {
    int ranks = 0;        // maximum participating ranks of one node
    double gb_per_s = 0;  // between them
    bool operator==(const Node&) const = default;
  };
  std::string name;
  // Prefix of its devices' target names, e.g. nvidia-h200. Empty: any device.
  std::string device;
  std::vector<Node> node;       // by ranks
  double network_gb_per_s = 0;  // all links between a node and the others
  // Latency of a collective: base plus a time per hop of a ring.
  double base_us = 0;
  double node_hop_us = 0;
  double network_hop_us = 0;
  double network_latency_factor = 1;  // for rings over several nodes
  // Fraction of the network's bandwidth that trees reach; 0: no trees.
  double tree_share = 0;
  // Variation of a rank's step time, as a fraction: all wait for the slowest.
  double jitter = 0;

  // Returns the bandwidth in GB/s between `ranks` ranks of a node.
  double NodeGbPerS(int ranks) const;

  bool operator==(const Cluster&) const = default;
};

// Reads a description (protobuf text format of ir/target/cluster.proto).
// `source` names it in errors; throws kGraph with line and column.
Cluster ParseCluster(std::string_view text,
                     std::string_view source = "cluster");

// Names of the built-in descriptions, ir/target/clusters/*.textproto; sorted.
std::vector<std::string> ClusterNames();
// Throws kUsage with the nearest name if unknown.
Cluster FindCluster(std::string_view name);

}  // namespace fusor::ir
