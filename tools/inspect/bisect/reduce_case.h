#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"

namespace fusor::inspect {

// A graph and one value per input.
struct TestCase {
  std::unique_ptr<ir::Graph> graph;
  std::vector<ir::Tensor> inputs;

  TestCase Clone() const;
};

// Returns whether a case still shows the symptom. Called with verified graphs;
// throwing Error counts as false.
using StillFails = std::function<bool(const TestCase&)>;

// Reduces a case to a small one that still `fails`, by delta debugging (Zeller
// and Hildebrandt, "Simplifying and isolating failure-inducing input"). Removes
// or shrinks
//
//   - outputs,
//   - runs of nodes, long runs first: an operand whose producer is removed
//     becomes an input with its recorded value, a value that lost its readers
//     an output,
//   - nodes in chains: their readers read an operand instead,
//   - tensor extents: one after the other, each wherever it occurs.
//
// Values keep their names, so a fault that depends on names persists. REQUIRES:
// fails(original). `stop` is called before each attempt; if it returns true,
// the smallest case so far is returned.
TestCase ReduceCase(
    const TestCase& original, const StillFails& fails,
    const std::function<bool()>& stop = [] { return false; });

// Copies the graph with extents replaced in every tensor. Throws if an op
// rejects the new extents.
using ExtentMap = std::map<int64_t, int64_t>;
std::unique_ptr<ir::Graph> WithExtents(const ir::Graph& graph,
                                       const ExtentMap& extents);

}  // namespace fusor::inspect
