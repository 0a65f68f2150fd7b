#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fusor::ir {

// The links between the devices of a cluster: plain data, from a description
// file, so that a prediction needs no cluster. Bandwidths are what NCCL calls
// bus bandwidth: what a link carries while a collective runs.
struct Cluster {
  struct Node {
    int ranks = 0;        // of one node that take part, up to so many
    double gb_per_s = 0;  // between them
    bool operator==(const Node&) const = default;
  };
  std::string name;
  // Prefix of the targets of its devices, e.g. nvidia-h200. Empty: any device.
  std::string device;
  std::vector<Node> node;       // by ranks
  double network_gb_per_s = 0;  // of all links of a node to the others
  // Latency of a collective: base + a time for each hop of a ring.
  double base_us = 0;
  double node_hop_us = 0;
  double network_hop_us = 0;
  double network_latency_factor = 1;  // of rings over several nodes
  // What trees reach of the network's bandwidth; 0: there are none.
  double tree_share = 0;
  // How much a rank's step varies, as a share of it: all wait for the slowest.
  double jitter = 0;

  // Between that many ranks of a node.
  double NodeGbPerS(int ranks) const;

  bool operator==(const Cluster&) const = default;
};

// Reads a description (protobuf text format of ir/target/cluster.proto).
// `source` names it in errors; throws kGraph with line and column.
Cluster ParseCluster(std::string_view text,
                     std::string_view source = "cluster");

// Names of the built-in descriptions, ir/target/clusters/*.textproto; sorted.
std::vector<std::string> ClusterNames();
// The built-in description of that name; throws kUsage with the nearest name.
Cluster FindCluster(std::string_view name);

}  // namespace fusor::ir
