#include "ir/target/cluster.h"

#include "ir/support/error.h"
#include "ir/target/descriptions.h"

namespace fusor::ir {

double Cluster::NodeGbPerS(int ranks) const {
  FUSOR_ASSERT(!node.empty(), "{}: no links", name);
  for (const Node& entry : node) {
    if (ranks <= entry.ranks) return entry.gb_per_s;
  }
  return node.back().gb_per_s;
}

std::vector<std::string> ClusterNames() {
  return NamesOf(ClusterDescriptions());
}

Cluster FindCluster(std::string_view name) {
  return ParseCluster(
      FindDescription(ClusterDescriptions(), "cluster", name).text, name);
}

}  // namespace fusor::ir
