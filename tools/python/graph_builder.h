#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "ir/builder.h"
#include "ir/graph.h"

namespace fusor::python {

// A graph under construction, shared by its builder and its values in Python.
struct Draft {
  explicit Draft(const std::string& name) : graph(name), builder(graph) {}

  ir::Graph graph;
  ir::Builder builder;
};

// fusor.Builder and fusor.Value. A value keeps its draft alive.
struct GraphBuilder {
  std::shared_ptr<Draft> draft;
};
struct GraphValue {
  std::shared_ptr<Draft> draft;
  ir::Value* value = nullptr;
};

// Declares both classes.
void BindBuilder(nanobind::module_& module);

}  // namespace fusor::python
