#pragma once

// What joined updates do for copies of weights (ir/weight_copy.h).

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"

namespace fusor::passes {

// The copies in a graph that are made of results of updates.
class WeightCopies {
 public:
  explicit WeightCopies(const ir::Graph& graph);

  // The copy nodes that read results of `update` and that nothing but state
  // gets, in topological order.
  std::vector<ir::Node*> Of(const ir::Node& update) const;

  // The next value of a copy that state holds.
  bool IsKept(const ir::Value* value) const { return kept_.contains(value); }

 private:
  bool IsForState(const ir::Node& node) const;
  void Collect(const ir::Value& value, std::vector<ir::Node*>& copies) const;

  std::unordered_set<const ir::Value*> kept_;
};

struct UpdateCopies {
  std::vector<ir::Node*> nodes;  // of the graph
  std::vector<ir::Value*> kept;  // results of theirs, one an output of the body
};

// Adds what computes each member's copies to the body of the update that joins
// the members, behind what there is, with outputs. `maps`: of each member, from
// values of its body to those of the joined one.
UpdateCopies AddCopies(
    const WeightCopies& copies, const std::vector<ir::Node*>& members,
    const std::vector<std::unordered_map<const ir::Value*, ir::Value*>>& maps,
    ir::Graph& body);

}  // namespace fusor::passes
