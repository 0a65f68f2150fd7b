#include "tests/examples/mlp.h"

#include <cmath>
#include <string>

#include "runtime/fusor.h"

namespace fusor::examples {
namespace {

using ir::Attrs;
using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::InputRole;
using ir::Shape;
using ir::Value;

// A parameter is an input of the graph. Its role determines how the optimizer
// treats it, its attributes determine its initial value.
Value* Parameter(Builder& b, const std::string& name, Shape shape,
                 InputRole role, Attrs init) {
  return b.graph().AddInput({DType::kF32, std::move(shape), {}}, role,
                            b.location() + "." + name, std::move(init));
}

Value* Linear(Builder& b, const std::string& name, Value* x, int64_t features) {
  const Builder::Scope scope(b, name);
  const int64_t in = x->type().shape.back();
  const double std = 1 / std::sqrt(static_cast<double>(in));
  Value* weight = Parameter(b, "weight", {features, in}, InputRole::kWeight,
                            {{"init", std::string("normal")}, {"std", std}});
  Value* bias = Parameter(b, "bias", {features}, InputRole::kBias,
                          {{"init", std::string("constant")}, {"value", 0.0}});
  return b.Linear(x, weight, bias);
}

Value* LayerNorm(Builder& b, const std::string& name, Value* x) {
  const Builder::Scope scope(b, name);
  const Shape shape{x->type().shape.back()};
  Value* gamma = Parameter(b, "weight", shape, InputRole::kNormScale,
                           {{"init", std::string("constant")}, {"value", 1.0}});
  Value* beta = Parameter(b, "bias", shape, InputRole::kNormShift,
                          {{"init", std::string("constant")}, {"value", 0.0}});
  return b.LayerNorm(x, gamma, beta, 1e-5);
}

}  // namespace

std::unique_ptr<Graph> BuildMlp(const MlpOptions& options) {
  auto graph = std::make_unique<Graph>("mlp");
  Builder b(*graph);
  const int64_t n = options.batch;
  Value* x = graph->AddInput({DType::kF32, {n, options.features}, {}},
                             InputRole::kData, "x");
  Value* labels =
      graph->AddInput({DType::kI32, {n}, {}}, InputRole::kData, "labels");

  x = Linear(b, "stem", x, options.width);
  for (int64_t i = 0; i < options.blocks; ++i) {
    const Builder::Scope scope(b, "block" + std::to_string(i));
    Value* y = Linear(b, "linear", LayerNorm(b, "norm", x), options.width);
    x = b.Plus(x, b.Gelu(y));
  }
  Value* logits = Linear(b, "head", LayerNorm(b, "norm", x), options.classes);
  // The compiler differentiates the output named "loss".
  graph->AddOutput(b.ReduceMean(b.CrossEntropy(logits, labels, {}), {0}),
                   "loss");
  return graph;
}

}  // namespace fusor::examples
