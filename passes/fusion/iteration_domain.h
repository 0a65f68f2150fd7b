#pragma once

// Decides which nodes can share one loop nest, and how each value is indexed in
// it.
//
// A fusion iterates over one domain: the operand of its reductions, or its
// largest result. Every value inside is a function of the domain's index: each
// of its dimensions is a constant, or offset + scale * (one domain dimension).
// All reductions have the same reduction axes. Values without a reduction axis
// are computed once per index of the parallel axes ("outer" values), the others
// once per domain point ("inner" values).
//
// Inner values that depend on a reduction's result are computed in a later pass
// over the reduction axes: pass 0 needs no reduction, pass s needs the results
// of earlier passes. Softmax has three passes, batch normalisation two.

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
  ir::Shape extents;         // of the domain, or of a part of it
  ir::Shape first;           // first index of the part
  ir::Layout layout;         // the loops follow its physical order
  std::vector<bool> folded;  // by dimension: reduction axis
  bool has_reduction = false;
  int num_sweeps = 1;

  // Index maps of all results of the nodes.
  std::unordered_map<const ir::Value*, ir::IndexMap> maps;
  // Pass of each value. Inner value: the pass that first computes it. Outer
  // value, e.g. a reduction's result: the pass after which it is available; -1:
  // before all passes.
  std::unordered_map<const ir::Value*, int> sweep;

  bool IsOuter(const ir::IndexMap& map) const;
  // Returns the map of the operand of reductions.
  ir::IndexMap Identity() const;
};

// Returns the map of operand `i` of `node`, given the map of the node's result
// (for operand 0 of an indexed op: of its dimensions without an index);
// nullopt if neither IsFusible nor IsPlacement is true. REQUIRES: the node is
// not a reduction.
std::optional<ir::IndexMap> OperandMap(const ir::Node& node, size_t i,
                                       const ir::IndexMap& result);

// Returns true for ops that can share a loop nest: elementwise ops, reductions,
// sources, and shape ops that only re-index.
bool IsFusible(const ir::Node& node);

// A pad or a concatenation places its operands in its result. The domain is
// then larger than they are, and their indices can be outside of them. A kernel
// loads the operand of a pad only where its index is inside. It has separate
// loops for each part of the domain in which a concatenation reads one operand.

// Returns true for pads and concatenations that can share a loop nest. A kernel
// with no other node instead writes the operands to their places.
bool IsPlacement(const ir::Node& node);

// Returns whether an index of a dimension with this extent can be outside of
// it, in loops with these extents.
bool CanBeOutside(const ir::DimMap& map, int64_t extent,
                  const ir::Shape& loops);

// Returns the parts of a domain between the places where concatenations among
// `nodes` change from one operand to the next. A part has maps only for the
// values that it needs. In each, one operand of every concatenation has one.
std::vector<IterationDomain> SplitAtConcats(
    std::span<const ir::Node* const> nodes,
    const std::unordered_set<const ir::Value*>& results,
    const IterationDomain& domain);

// Returns the operand of a concatenation that such a part reads.
size_t OperandInPart(const ir::Node& concat, const IterationDomain& part);

// Returns true for nodes that are free to recompute inside a kernel, so that
// every consumer may have a copy: broadcast constants, iotas, integers and
// bools that are computed from these, selections by these between a tensor and
// a constant, widening casts, and ops that only re-index.
bool IsFree(const ir::Node& node);

// Returns true for a broadcast constant: a source with one value for all
// elements.
bool IsSplat(const ir::Node& node);

// Computes the domain of `nodes`, in topological order, of which `results` are
// stored. If there is none, returns false and sets `reason` to one of a fixed
// set of phrases.
bool AnalyzeDomain(std::span<const ir::Node* const> nodes,
                   const std::unordered_set<const ir::Value*>& results,
                   IterationDomain* domain, std::string* reason);

}  // namespace fusor::passes
