#pragma once

// Decides which nodes share a kernel.
//
//  1. Each fusible node starts as a cluster. A queue holds pairs of clusters,
//     producer and consumer or two readers of one value, by the modelled time
//     that merging them saves: bytes that no longer cross memory, plus one
//     launch. Integer nanoseconds; ties by position, so that the result does
//     not depend on addresses.
//  2. The best pair is merged when its loop nests agree (AnalyzeDomain), when
//     no path leaves the union and comes back, and within size limits. The
//     first rule that fails is recorded as the reason; of a merged pair, which
//     of the two kinds it was.
//
// A producer's value that others need stays a result of the merged cluster.

#include <queue>
#include <string>
#include <unordered_set>
#include <vector>

#include "passes/fusion/cluster_graph.h"
#include "passes/passes.h"

namespace fusor::passes {

class Clustering {
 public:
  // The graph must not change while this lives.
  Clustering(const ir::Graph& graph, PassContext& context);

  // Merges until no pair is left. `only_free`: none but free nodes into their
  // only consumer.
  void Merge(bool only_free);

  // The nodes of each cluster in the graph's order; clusters by the position of
  // their first node.
  std::vector<std::vector<ir::Node*>> Clusters() const;

 private:
  struct Candidate {
    int64_t saved_ns;
    int first, second;  // clusters; first the one that began earlier
    int first_version, second_version;
    bool operator<(const Candidate& other) const {
      if (saved_ns != other.saved_ns) return saved_ns < other.saved_ns;
      if (first != other.first) return first > other.first;
      return second > other.second;
    }
  };

  // Clusters are the units of fusible nodes; -1 for every other node.
  int ClusterOf(const ir::Node& node) const;
  const std::vector<ir::Node*>& Nodes(int cluster) const {
    return units_.members(cluster);
  }
  std::string Describe(int cluster) const;
  bool IsOutput(const ir::Node& node) const {
    return is_output_[node.position()];
  }

  using ValueSet = std::unordered_set<const ir::Value*>;

  std::vector<int> Neighbours(int cluster) const;
  // All inputs of its nodes, results of other nodes of the cluster included.
  ValueSet Operands(int cluster) const;
  // `of_a`: Operands(a).
  void PushCandidate(int a, const ValueSet& of_a, int b);
  // The pair's merge, or the record of why not.
  void Try(const Candidate& candidate);

  bool FreeBeforeConsumer(int a, int b) const;
  bool IsReadOutside(const ir::Node& node, int a, int b) const;
  int64_t SavedNs(int a, const ValueSet& of_a, int b) const;
  // Of the cluster as one kernel: operands are read and results written once.
  int64_t ModelledNs(int cluster) const;
  // Bytes that cross memory between the two, or that both read.
  int64_t SharedBytes(int a, const ValueSet& of_a, int b) const;
  // Empty when the clusters may be merged.
  std::string WhyNot(int a, int b);
  bool Connected(int a, int b) const;

  const ir::Graph& graph_;
  PassContext& context_;
  ClusterGraph units_;
  std::vector<bool> is_candidate_;  // by position: becomes a kernel
  std::vector<bool> is_output_;     // by position
  std::vector<int> version_;        // of each cluster
  std::priority_queue<Candidate> queue_;
  bool only_free_ = false;
};

}  // namespace fusor::passes
