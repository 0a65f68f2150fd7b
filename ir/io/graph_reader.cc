#include "ir/io/graph_reader.h"

#include "ir/support/error.h"

namespace fusor::ir {
namespace {

void CheckName(const Value& value, const std::string& wanted) {
  FUSOR_CHECK(value.name() == wanted, kGraph, "name %{} is taken", wanted);
}

}  // namespace

Value* DeclareInput(Graph& graph, Declaration declared, InputRole role,
                    Attrs attrs) {
  CheckType(declared.type);
  Value* value = graph.AddInput(std::move(declared.type), role, declared.name,
                                std::move(attrs));
  graph.Rename(value, declared.name);  // also if the name is empty
  CheckName(*value, declared.name);
  return value;
}

Node* DeclareNode(Graph& graph, std::string_view op, std::vector<Value*> inputs,
                  Attrs attrs, Location location, std::unique_ptr<Graph> body,
                  std::vector<Declaration> results) {
  Node* node = graph.AddNode(op, std::move(inputs), std::move(attrs),
                             std::move(location), nullptr, std::move(body));
  FUSOR_CHECK(results.size() == node->num_outputs(), kGraph,
              "{}: {} results are declared, the op has {}", op, results.size(),
              node->num_outputs());
  std::vector<std::string> names;
  for (size_t i = 0; i < results.size(); ++i) {
    TensorType& type = results[i].type;
    const TensorType& inferred = node->output(i)->type();
    CheckType(type);
    FUSOR_CHECK(type.dtype == inferred.dtype && type.shape == inferred.shape,
                kGraph, "{}: result {} is declared {}, the op infers {}", op, i,
                ToString(type), ToString(inferred));
    node->output(i)->set_type(std::move(type));
    names.push_back(results[i].name);
  }
  graph.RenameResults(node, std::move(names));
  for (size_t i = 0; i < results.size(); ++i) {
    CheckName(*node->output(i), results[i].name);
  }
  return node;
}

}  // namespace fusor::ir
