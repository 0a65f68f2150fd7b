#pragma once

// Cached cast weights (ir/weight_copy.h) in joined updates.

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"

namespace fusor::passes {

// The copies in a graph that are computed from results of updates.
class WeightCopies {
 public:
  explicit WeightCopies(const ir::Graph& graph);

  // Returns the copy nodes that read results of `update` and are used only by
  // state, in topological order.
  std::vector<ir::Node*> Of(const ir::Node& update) const;

  // Returns true for the next value of a copy that is state.
  bool IsKept(const ir::Value* value) const { return kept_.contains(value); }

 private:
  bool IsForState(const ir::Node& node) const;
  void Collect(const ir::Value& value, std::vector<ir::Node*>& copies) const;

  std::unordered_set<const ir::Value*> kept_;
};

struct UpdateCopies {
  std::vector<ir::Node*> nodes;  // of the graph
  std::vector<ir::Value*>
      kept;  // their state results, one per added body output
};

// Adds the copies of each member to the body of the update that joins the
// members, after its nodes, with one output per kept copy. `maps` translates,
// per member, values of its body to values of the joined body.
UpdateCopies AddCopies(
    const WeightCopies& copies, const std::vector<ir::Node*>& members,
    const std::vector<std::unordered_map<const ir::Value*, ir::Value*>>& maps,
    ir::Graph& body);

}  // namespace fusor::passes
