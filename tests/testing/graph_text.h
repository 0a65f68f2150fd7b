#pragma once

#include <memory>
#include <string_view>

#include "ir/graph.h"

namespace fusor::test {

// Parses the graph of a test. If the text does not parse, fails the test,
// prints the text and throws.
std::unique_ptr<ir::Graph> ParseOrDie(std::string_view text);

enum class Names { kIgnore, kCompare };

// Fails the test at the caller's line and prints both texts if `actual` is not
// the graph that `expected` describes. `names` selects whether names of values
// and graphs are compared. Names of outputs, locations and roles always are.
void ExpectSameGraph(std::string_view expected, const ir::Graph& actual,
                     Names names = Names::kIgnore,
                     const char* file = __builtin_FILE(),
                     int line = __builtin_LINE());

}  // namespace fusor::test
