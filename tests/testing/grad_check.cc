#include "tests/testing/grad_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "ir/support/error.h"
#include "passes/training/training_state.h"

namespace fusor::test {
namespace {

using ir::Builder;
using ir::EvalMode;
using ir::Graph;
using ir::Tensor;
using ir::Value;

// Returns the dot product of the floating-point results and arbitrary, fixed
// weights.
Value* WeightedSum(Builder& b, const std::vector<Value*>& results) {
  Value* sum = nullptr;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!ir::IsFloat(results[i]->type().dtype)) continue;
    Value* y = b.Copy(results[i], {});
    const Tensor weights = RandomTensor(y->type(), 1000 + i, 0.5, 1.5);
    Value* factor = b.Constant(y->type().dtype, y->type().shape, weights.data);
    std::vector<int64_t> dims;
    for (size_t d = 0; d < y->type().rank(); ++d) {
      dims.push_back(static_cast<int64_t>(d));
    }
    Value* term = b.ReduceSum(b.Times(y, factor), dims);
    sum = sum == nullptr ? term : b.Plus(sum, term);
  }
  return sum;
}

// Adds the inputs to the graph and returns the loss.
Value* BuildLoss(const GraphFunction& function,
                 const std::vector<Tensor>& inputs, Graph& graph) {
  std::vector<Value*> values;
  for (const Tensor& input : inputs) {
    values.push_back(graph.AddInput(input.type, ir::InputRole::kWeight, "x"));
  }
  Builder b(graph);
  Value* loss = WeightedSum(b, function(b, values));
  FUSOR_ASSERT(loss != nullptr, "no floating-point result to differentiate");
  return loss;
}

double Loss(const Graph& graph, const std::vector<Tensor>& inputs) {
  return Interpret(graph, inputs, EvalMode::kExact)[0].data[0];
}

// Four-point formula: the error is O(step^4), about 1e-12 of the fifth
// derivative.
double CentralDifference(const Graph& graph, std::vector<Tensor>& inputs,
                         double& x) {
  constexpr double kStep = 1e-3;
  const double middle = x;
  const auto at = [&](double offset) {
    x = middle + offset;
    return Loss(graph, inputs);
  };
  const double near = at(kStep) - at(-kStep);
  const double far = at(2 * kStep) - at(-2 * kStep);
  x = middle;
  return (8 * near - far) / (12 * kStep);
}

}  // namespace

::testing::AssertionResult GradCheck(const GraphFunction& function,
                                     const std::vector<Tensor>& inputs,
                                     double tolerance) {
  Graph forward("forward");
  forward.AddOutput(BuildLoss(function, inputs, forward), "loss");
  Graph both("both");
  Value* loss = BuildLoss(function, inputs, both);
  std::vector<Value*> wrt;
  std::vector<size_t> which;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!ir::IsFloat(inputs[i].type.dtype)) continue;
    wrt.push_back(both.input(i));
    which.push_back(i);
  }
  for (Value* gradient : passes::BuildGradients(both, loss, wrt)) {
    both.AddOutput(gradient, "gradient");
  }
  const std::vector<Tensor> gradients =
      Interpret(both, inputs, EvalMode::kExact);
  std::vector<Tensor> moved = inputs;
  for (size_t g = 0; g < gradients.size(); ++g) {
    Tensor expected = gradients[g];
    double scale = 1;
    for (size_t i = 0; i < expected.data.size(); ++i) {
      expected.data[i] =
          CentralDifference(forward, moved, moved[which[g]].data[i]);
      scale = std::max(scale, std::fabs(expected.data[i]));
    }
    const auto close = AllClose(gradients[g], expected, 0, tolerance * scale);
    if (!close) {
      return ::testing::AssertionFailure()
             << "gradient of input " << which[g] << ": " << close.message();
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace fusor::test
