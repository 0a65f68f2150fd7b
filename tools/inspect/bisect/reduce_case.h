#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"

namespace fusor::codegen {

// A graph and a value for each of its inputs.
struct TestCase {
  std::unique_ptr<ir::Graph> graph;
  std::vector<ir::Tensor> inputs;

  TestCase Clone() const;
};

// True when a case still shows what is looked for. Called with verified graphs;
// an Error it throws counts as no.
using StillFails = std::function<bool(const TestCase&)>;

// The least that `fails` that was found by leaving out, as in delta debugging
// (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input"),
//
//   - outputs,
//   - runs of nodes, long ones first: an operand whose producer is gone becomes
//     an input with the value that it had, a value whose readers are gone an
//     output,
//   - nodes in chains, whose readers read an operand instead,
//   - rows of tensors: one extent after the other is made smaller wherever it
//     occurs.
//
// Values keep their names, so that a fault that goes by names stays where it
// is. REQUIRES: fails(original). `stop`, asked before each attempt, ends the
// search with the least that was found until then.
TestCase ReduceCase(
    const TestCase& original, const StillFails& fails,
    const std::function<bool()>& stop = [] { return false; });

// Copies the graph with extents replaced in every tensor. Throws where an op
// rejects the new ones.
using ExtentMap = std::map<int64_t, int64_t>;
std::unique_ptr<ir::Graph> WithExtents(const ir::Graph& graph,
                                       const ExtentMap& extents);

}  // namespace fusor::codegen
