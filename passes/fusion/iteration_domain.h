#pragma once

// Which nodes can share one loop nest, and how each value is indexed in it.
//
// A fusion iterates over one domain: the operand of its reductions, or its
// largest result. Every value inside is a function of the domain's index: each
// of its dimensions is a constant, or offset + scale * (one domain dimension).
// Reductions all fold the same domain dimensions; values without a folded
// dimension are computed once per kept index ("outer" values), the others once
// per domain point ("inner" values).
//
// Inner values that depend on a reduction's result are computed in a later
// sweep over the folded dimensions: sweep 0 needs no reduction, sweep s the
// results of sweeps below s. Softmax has three sweeps, batch normalisation two.

#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"
#include "ir/index_map.h"

namespace fusor::passes {

struct IterationDomain {
  ir::Shape extents;         // of the domain's dimensions
  ir::Layout layout;         // whose physical order the loops follow
  std::vector<bool> folded;  // dimension -> reduced away
  bool has_reduction = false;
  int num_sweeps = 1;

  // Of every result of the nodes.
  std::unordered_map<const ir::Value*, ir::IndexMap> maps;
  // Inner value: the sweep that computes it first. Reduction result and other
  // outer values: the sweep after which it is known, -1 before all.
  std::unordered_map<const ir::Value*, int> sweep;

  bool IsOuter(const ir::IndexMap& map) const;
};

// The map of operand `i` of `node`, given the map of the node's result; nullopt
// where IsFusible is false. REQUIRES: the node is not a reduction.
std::optional<ir::IndexMap> OperandMap(const ir::Node& node, size_t i,
                                       const ir::IndexMap& result);

// True for ops that a common loop nest can hold: elementwise, reductions,
// sources, and shape ops that only re-index.
bool IsFusible(const ir::Node& node);

// True for nodes that cost nothing inside a kernel, so that every consumer may
// have its own: splats, iotas, and ops that only re-index.
bool IsFree(const ir::Node& node);

// True for a source of one value everywhere.
bool IsSplat(const ir::Node& node);

// The domain of `nodes` (topological order), of which `results` are to be
// stored. False when they have none, with `reason` set to one of a fixed set
// of phrases.
bool AnalyzeDomain(std::span<const ir::Node* const> nodes,
                   const std::unordered_set<const ir::Value*>& results,
                   IterationDomain* domain, std::string* reason);

}  // namespace fusor::passes
