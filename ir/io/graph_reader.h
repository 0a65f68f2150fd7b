#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace fusor::ir {

// The name and type of a value as a stored graph declares them, instead of
// generated names and inferred types.
struct Declaration {
  std::string name;
  TensorType type;
};

// Like Graph::AddInput and Graph::AddNode, with declared names and types. Throw
// kGraph if a name is taken, a type is invalid, or a dtype or shape differs
// from what the op infers. Layouts are taken as declared; Verify checks them.
Value* DeclareInput(Graph& graph, Declaration declared, InputRole role,
                    Attrs attrs);
Node* DeclareNode(Graph& graph, std::string_view op, std::vector<Value*> inputs,
                  Attrs attrs, Location location, std::unique_ptr<Graph> body,
                  std::vector<Declaration> results);

}  // namespace fusor::ir
