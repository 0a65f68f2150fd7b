#pragma once

#include <memory>
#include <string_view>

#include "ir/graph.h"

namespace fusor::test {

// The graph of a test's text. A text that does not parse fails the test, with
// the text, and throws.
std::unique_ptr<ir::Graph> ParseOrDie(std::string_view text);

enum class Names { kIgnore, kCompare };

// Fails the test at the caller's line, printing both texts, unless `actual` is
// the graph of `expected`. Names of values and graphs are ignored unless asked
// for; names of outputs, locations and roles never are.
void ExpectSameGraph(std::string_view expected, const ir::Graph& actual,
                     Names names = Names::kIgnore,
                     const char* file = __builtin_FILE(),
                     int line = __builtin_LINE());

}  // namespace fusor::test
