#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace fusor::ir {

// For readers of stored graphs, which say what the graph would otherwise choose
// or infer: names and result types.
struct Declaration {
  std::string name;
  TensorType type;
};

// Graph::AddInput and Graph::AddNode with the names and types as declared.
// Throw kGraph when a name is taken, a type is invalid, or a dtype or shape is
// not what the op infers. Layouts are taken as declared; Verify judges them.
Value* DeclareInput(Graph& graph, Declaration declared, InputRole role,
                    Attrs attrs);
Node* DeclareNode(Graph& graph, std::string_view op, std::vector<Value*> inputs,
                  Attrs attrs, Location location, std::unique_ptr<Graph> body,
                  std::vector<Declaration> results);

}  // namespace fusor::ir
