#pragma once

// A graph some of whose nodes have been merged into units, with a topological
// order of the units: whether one more merge would make a cycle is answered by
// a walk over what lies between two units in that order, from both ends at
// once, and not over the graph.
//
// After Bender, Fineman, Gilbert and Tarjan, "A new approach to incremental
// cycle detection and related problems", 2015 (two-way search), with the order
// as a list whose places carry labels.

#include <cstdint>
#include <vector>

#include "ir/graph.h"

namespace fusor::passes {

class ClusterGraph {
 public:
  // Each node is a unit of its own, named by its position. The graph must not
  // change while this lives.
  explicit ClusterGraph(const ir::Graph& graph);

  int UnitOf(const ir::Node& node) const { return unit_[node.position()]; }
  // In the graph's order; empty once merged into another unit.
  const std::vector<ir::Node*>& members(int unit) const {
    return members_[unit];
  }

  // True when a path leaves one of the two units and enters the other through
  // a third.
  bool MergeMakesCycle(int a, int b);
  // The members of `b` join `a`. REQUIRES: !MergeMakesCycle(a, b).
  void Merge(int a, int b);

 private:
  // One end of a search: what it reaches between the two units.
  struct Side {
    bool forward;
    std::vector<int> reached;
    std::vector<int> stack;
  };

  // True when a path joins the two through others. If not, done_ is the side
  // that has reached all it can.
  bool Search(int earlier, int later);
  // Takes one unit off the side's stack; true when it has met the other side.
  bool Step(Side& side, int earlier, int later);
  template <typename Visit>
  void ForEachNeighbour(int unit, bool forward, Visit visit) const;

  // Moves units, in this order, to right behind another one.
  void MoveBehind(int unit, const std::vector<int>& moved);
  // `unit` goes where `other` is, which is about to leave.
  void TakePlace(int unit, int other);
  void Unlink(int unit);
  void LabelAll();

  std::vector<int> unit_;  // by position of a node
  std::vector<std::vector<ir::Node*>> members_;
  // The order of units: a ring through a sentinel, and labels that grow along
  // it.
  std::vector<int> next_, previous_;
  std::vector<int64_t> label_;

  Side forward_{true, {}, {}};
  Side backward_{false, {}, {}};
  const Side* done_ = nullptr;
  // unit -> the last search that saw it, negative when from behind
  std::vector<int> seen_;
  int search_ = 0;
};

}  // namespace fusor::passes
