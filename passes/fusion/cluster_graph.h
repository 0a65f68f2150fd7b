#pragma once

// A graph whose nodes are merged step by step into units, with a topological
// order of the units. To check whether a merge would create a cycle, it
// searches from both units at once and visits only units between the two in
// that order.
//
// After Bender, Fineman, Gilbert and Tarjan, "A new approach to incremental
// cycle detection and related problems", 2015 (two-way search). The order is a
// linked list with labels.

#include <cstdint>
#include <vector>

#include "ir/graph.h"

namespace fusor::passes {

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

}  // namespace fusor::passes
