#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "ir/graph.h"

namespace fusor::ir {

struct PrintOptions {
  bool locations = true;
  // Longer lists of floats print as <1000 values>, which Parse rejects.
  size_t max_list = std::numeric_limits<size_t>::max();
  // Returns a comment on a node with a body, "" for none. Unset: no comments.
  std::function<std::string(const Node&)> comment{};
};

// Prints the text form, one node per line. With the default options Parse
// (ir/io/parser.h) returns an equal graph:
//
//   graph example {
//     %x = data : f32[8,64]
//     %w = weight {init="normal", std=0.1} : f32[10,64]
//     %y = matmul(%x, %w) {transpose_b=true} : f32[8,10] @"head.fc" "mlp.cc:33"
//     %f = fusion(%y) : f32[10] @"head" graph softplus {
//       %p = data : f32[8,10]
//       %exp = exp(%p) : f32[8,10]
//       %sum = reduce(%exp) {dims=[0], kind="sum"} : f32[10]
//       return %sum
//     }
//     return %f as "loss", %w as "w" -> %w
//   }
//
// Inputs print their role, nodes their op; attributes with default values are
// omitted. @ is followed by the node's location in the model and, if known, the
// source line of the model's code; the location is "" if only the line is
// known. `-> %w` marks the output as the next value of input %w. The body's
// name, `graph softplus`, is omitted if it is "graph". Names with characters
// other than letters, digits, '_', '.' and '$' are quoted: %"a b". Floats have
// a point, an exponent or a name (inf, nan) and are the shortest text that
// reads back bit for bit. An empty list of floats is floats[]. Comments run
// from // to the end of the line.
std::string Print(const Graph& graph, const PrintOptions& options = {});

// Prints one node without its body.
std::string Print(const Node& node, const PrintOptions& options = {});

// Prints a location as after a node, with a leading blank; "" if empty.
std::string Print(const Location& location);

}  // namespace fusor::ir
