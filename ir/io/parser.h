#pragma once

#include <memory>
#include <string_view>

#include "ir/graph.h"

namespace fusor::ir {

// Reads the text form of one graph (ir/io/printer.h) and verifies it. Throws
// kGraph with one line, "source:line:column: expected .., got ..", on anything
// else; never crashes, whatever the text.
std::unique_ptr<Graph> Parse(std::string_view text,
                             std::string_view source = "graph text");

}  // namespace fusor::ir
