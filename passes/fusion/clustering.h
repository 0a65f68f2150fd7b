#pragma once

// Decides which nodes share a kernel.
//
//  1. Each fusible node starts as a cluster. A queue holds pairs of clusters
//     (producer and consumer, or two readers of one value) by the estimated
//     time that merging them saves: bytes that are no longer read or written,
//     plus one launch. The time is in integer nanoseconds. Ties are broken by
//     position, so that the result does not depend on addresses.
//  2. The best pair is merged if size limits hold, the merge creates no cycle,
//     and its loop nests agree (AnalyzeDomain). The first rule that fails
//     is recorded as the rejection reason; for a merged pair, the kind of pair.
//
// A producer's value with readers elsewhere remains a result of the merged
// cluster.

#include <cstdint>
#include <queue>
#include <string>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"
#include "passes/passes.h"

namespace fusor::passes {

// Maximum number of nodes of a fusion.
inline constexpr size_t kMaxKernelNodes = 400;
// The pass that records the decisions about clusters and consumes their fuel.
inline constexpr char kFusePass[] = "fuse";

// A graph whose nodes are merged step by step into units, with a topological
// order of the units. To check whether a merge would create a cycle, it
// searches from both units at once and visits only units between the two in
// that order.
//
// After Bender, Fineman, Gilbert and Tarjan, "A new approach to incremental
// cycle detection and related problems", 2015 (two-way search). The order is a
// linked list with labels.
class ClusterGraph {
 public:
  // Creates one unit per node, named by its position. The graph must not change
  // during the lifetime of this object.
  explicit ClusterGraph(const ir::Graph& graph);

  int UnitOf(const ir::Node& node) const { return unit_[node.position()]; }
  // Members in graph order; empty once merged into another unit.
  const std::vector<ir::Node*>& members(int unit) const {
    return members_[unit];
  }

  // Returns true if a path leads from one of the two units to the other through
  // a third.
  bool MergeMakesCycle(int a, int b);
  // Moves the members of `b` to `a`. REQUIRES: !MergeMakesCycle(a, b).
  void Merge(int a, int b);

 private:
  // One direction of a search: the units reached between the two.
  struct Side {
    bool forward;
    std::vector<int> reached;
    std::vector<int> stack;
  };

  // Returns true if a path through other units connects the two. Otherwise sets
  // done_ to the direction that has reached all units it can.
  bool Search(int earlier, int later);
  // Pops one unit off the side's stack. Returns true if the sides have met.
  bool Step(Side& side, int earlier, int later);
  template <typename Visit>
  void ForEachNeighbour(int unit, bool forward, Visit visit) const;

  // Moves units, in this order, right after another one.
  void MoveBehind(int unit, const std::vector<int>& moved);
  // Moves `unit` to the position of `other`, which is about to be removed.
  void TakePlace(int unit, int other);
  void Unlink(int unit);
  void LabelAll();

  std::vector<int> unit_;  // by position of a node
  std::vector<std::vector<ir::Node*>> members_;
  // The order of units: a circular list with a sentinel, and increasing labels.
  std::vector<int> next_, previous_;
  std::vector<int64_t> label_;

  Side forward_{true, {}, {}};
  Side backward_{false, {}, {}};
  const Side* done_ = nullptr;
  // By unit: the last search that visited it, negative if backward.
  std::vector<int> seen_;
  int search_ = 0;
};

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

  // IsFree (iteration_domain.h), which is asked many times for each node.
  bool IsFree(const ir::Node& node) const { return is_free_[node.position()]; }

  // Range of node positions. Ignores free nodes: a copy is positioned next to
  // its original, which may be far from the copy's only reader.
  struct Extent {
    int first = -1;  // -1: no node yet
    int last = -1;
    bool IsTooLongForSiblings() const;
  };
  void Extend(Extent& extent, const ir::Node& node) const;

  using ValueSet = std::unordered_set<const ir::Value*>;

  std::vector<int> Neighbours(int cluster) const;
  // All inputs of its nodes, including results of the cluster's other nodes.
  ValueSet Operands(int cluster) const;
  // `of_a`: Operands(a).
  void PushCandidate(int a, const ValueSet& of_a, int b);
  // Merges the pair, or records why not.
  void Try(const Candidate& candidate);

  bool FreeBeforeConsumer(int a, int b) const;
  // Returns true for a scalar computed from scalar state alone, such as a bias
  // correction. REQUIRES: is_of_state_ of the nodes before it.
  bool IsOfState(const ir::Node& node) const;
  bool HasOtherReader(const ir::Node& node, int a, int b) const;
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
  std::vector<bool> is_free_;       // by position
  std::vector<bool> is_candidate_;  // by position: whether it becomes a kernel
  std::vector<bool> is_output_;     // by position
  std::vector<bool> is_of_state_;   // by position
  std::vector<int> version_;        // of each cluster
  std::priority_queue<Candidate> queue_;
  bool only_free_ = false;
};

}  // namespace fusor::passes
