
#include "ir/builder.h"
#include "ir/support/error.h"
#include "ir/support/regex.h"
#include "models/model.h"

namespace fusor::models {
namespace {

// Makes the parameter a constant for differentiation.
void Freeze(ir::Graph& graph, ir::Value* parameter) {
  const std::vector<ir::Use> uses = parameter->uses();
  if (uses.empty()) return;
  ir::Value* constant = graph
                            .AddNode("stop_gradient", {parameter}, {}, {},
                                     graph.nodes().front().get())
                            ->output();
  for (const ir::Use& use : uses) {
    use.node->SetInput(static_cast<size_t>(use.operand), constant);
  }
}

}  // namespace

void FreezeParameters(ir::Graph& graph,
                      const std::vector<std::string>& expressions) {
  if (expressions.empty()) return;
  std::vector<ir::Value*> parameters;
  for (const ir::Input& input : graph.inputs()) {
    if (IsParameter(input.role)) parameters.push_back(input.value.get());
  }
  std::vector<bool> frozen(parameters.size(), false);
  for (const std::string& expression : expressions) {
    const Regex regex(expression, "freeze");
    bool found = false;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!regex.Found(parameters[i]->name())) continue;
      frozen[i] = found = true;
    }
    FUSOR_CHECK(found, kUsage,
                "freeze {}: found in no parameter of {}: expected a part of a "
                "name such as {}",
                expression, graph.name(),
                parameters.empty() ? "none" : parameters[0]->name());
  }
  size_t left = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (frozen[i]) {
      Freeze(graph, parameters[i]);
    } else {
      ++left;
    }
  }
  FUSOR_CHECK(left > 0, kUsage,
              "freeze: all {} parameters of {} are frozen: expected some that "
              "are trained",
              parameters.size(), graph.name());
}

}  // namespace fusor::models
