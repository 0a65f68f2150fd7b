#pragma once

// Programs that tests of ir::Builder build and interpret.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/interpreter/interpreter.h"
#include "ir/support/error.h"
#include "tests/testing/numeric.h"

namespace fusor::test {

inline ir::TensorType F64(ir::Shape shape) {
  return {ir::DType::kF64, std::move(shape), {}};
}

// A graph with values for its inputs.
struct Program {
  ir::Graph graph;
  ir::Builder b{graph};
  std::vector<ir::Tensor> inputs;

  ir::Value* In(ir::Tensor tensor) {
    inputs.push_back(std::move(tensor));
    return graph.AddInput(inputs.back().type, ir::InputRole::kData, "x");
  }
  ir::Value* Random(ir::Shape shape, uint64_t seed, double low = -1,
                    double high = 1) {
    return In(RandomTensor(F64(std::move(shape)), seed, low, high));
  }
  ir::Tensor Run(ir::Value* value) {
    graph.AddOutput(value, "y");
    return ir::Interpret(graph, inputs, ir::EvalMode::kExact).back();
  }
};

inline int64_t CountOps(const ir::Graph& graph, std::string_view op) {
  return std::count_if(graph.nodes().begin(), graph.nodes().end(),
                       [&](const auto& n) { return n->op_name() == op; });
}

// Returns the message of the kGraph error that the call throws.
template <typename Call>
std::string ErrorOf(Call call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kGraph);
    return e.what();
  }
  return "nothing was thrown";
}

}  // namespace fusor::test
