#pragma once

#include <cstdint>

#include "ir/graph.h"
#include "ir/target/target.h"

namespace fusor::ir {

// Multiply-accumulates: OpDef::macs of a node, of all nodes outside of fusions.
int64_t NodeMacs(const Node& node);
int64_t GraphMacs(const Graph& graph);

// Bytes of `elements` bits.
constexpr int64_t PackedBytes(int64_t elements) { return (elements + 7) / 8; }

// Bytes of a value between kernels, which keep bools at one bit an element.
int64_t KernelBytes(const TensorType& type);

// Bytes that the node must move at least as a kernel: its distinct operands and
// results.
int64_t NodeBytes(const Node& node);

// Modelled time of a kernel that moves so many bytes and computes little.
int64_t KernelNs(int64_t bytes, const Target& target);

}  // namespace fusor::ir
