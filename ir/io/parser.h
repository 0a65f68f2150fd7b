#pragma once

#include <memory>
#include <string_view>

#include "ir/graph.h"

namespace fusor::ir {

// Parses and verifies the text form of one graph (ir/io/printer.h). Throws
// kGraph with one line, "source:line:column: expected .., got ..", on any other
// text; never crashes.
std::unique_ptr<Graph> Parse(std::string_view text,
                             std::string_view source = "graph text");

}  // namespace fusor::ir
