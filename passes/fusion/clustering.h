#pragma once

// Decides which nodes share a kernel.
//
//  1. Each fusible node starts as a cluster. A queue holds pairs of clusters
//     (producer and consumer, or two readers of one value) by the estimated
//     time that merging them saves: bytes that are no longer read or written,
//     plus one launch. In integer nanoseconds; ties are broken by position, so
//     that the result does not depend on addresses.
//  2. The best pair is merged if its loop nests agree (AnalyzeDomain), the
//     merge creates no cycle, and size limits hold. The first rule that fails
//     is recorded as the rejection reason; for a merged pair, the kind of pair.
//
// A producer's value with readers elsewhere remains a result of the merged
// cluster.

#include <queue>
#include <string>
#include <unordered_set>
#include <vector>

#include "passes/fusion/cluster_graph.h"
#include "passes/passes.h"

namespace fusor::passes {

class Clustering {
 public:
  // The graph must not change during the lifetime of this object.
  Clustering(const ir::Graph& graph, PassContext& context);

  // Merges until no pair is left. `only_free`: only merges nodes that are free
  // to recompute into their only consumer.
  void Merge(bool only_free);

  // Returns the nodes of each cluster in graph order; clusters by the position
  // of their first node.
  std::vector<std::vector<ir::Node*>> Clusters() const;

 private:
  struct Candidate {
    int64_t saved_ns;
    int first, second;  // clusters; the one with the first node first
    int first_version, second_version;
    bool operator<(const Candidate& other) const {
      if (saved_ns != other.saved_ns) return saved_ns < other.saved_ns;
      if (first != other.first) return first > other.first;
      return second > other.second;
    }
  };

  // Clusters are units of fusible nodes; -1 for every other node.
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
  // All inputs of its nodes, including results of the cluster's other nodes.
  ValueSet Operands(int cluster) const;
  // `of_a`: Operands(a).
  void PushCandidate(int a, const ValueSet& of_a, int b);
  // Merges the pair, or records why not.
  void Try(const Candidate& candidate);

  bool FreeBeforeConsumer(int a, int b) const;
  bool IsReadOutside(const ir::Node& node, int a, int b) const;
  int64_t SavedNs(int a, const ValueSet& of_a, int b) const;
  // Estimated time of the cluster as one kernel that reads each operand and
  // writes each result once.
  int64_t ModelledNs(int cluster) const;
  // Bytes that one passes to the other, or that both read.
  int64_t SharedBytes(int a, const ValueSet& of_a, int b) const;
  // Returns the rejection reason; empty if the clusters may be merged.
  std::string WhyNot(int a, int b);
  bool Connected(int a, int b) const;

  const ir::Graph& graph_;
  PassContext& context_;
  ClusterGraph units_;
  std::vector<bool> is_candidate_;  // by position: whether it becomes a kernel
  std::vector<bool> is_output_;     // by position
  std::vector<int> version_;        // of each cluster
  std::priority_queue<Candidate> queue_;
  bool only_free_ = false;
};

}  // namespace fusor::passes
