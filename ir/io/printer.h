#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "ir/graph.h"

namespace fusor::ir {

struct PrintOptions {
  bool locations = true;
  // Longer lists of floats print as <1000 values>, which Parse rejects.
  size_t max_list = std::numeric_limits<size_t>::max();
};

// The text form, one node a line. With the default options Parse
// (ir/io/parser.h) gives back an equal graph:
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
// Inputs name their role, nodes their op; attributes that have their default
// are left out. After @ stand the location of a node in the model and, where it
// is known, the line of the model's code; @"" where only that is. `-> %w` says
// that the output is the next value of input %w. A body's name, `graph
// softplus`, is left out when it is "graph". Names that are not made of
// letters, digits, '_', '.' and '$' are quoted: %"a b". Floats have a point, an
// exponent or a name (inf, nan) and are as short as they can be read back bit
// for bit; an empty list of floats is floats[]. Comments run from // to the end
// of the line.
std::string Print(const Graph& graph, const PrintOptions& options = {});

// Prints one node without its body.
std::string Print(const Node& node, const PrintOptions& options = {});

// Prints a location as after a node, with a leading blank; "" if empty.
std::string Print(const Location& location);

}  // namespace fusor::ir
