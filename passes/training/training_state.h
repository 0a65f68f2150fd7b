#pragma once

#include <string>
#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"
#include "passes/passes.h"

namespace fusor::passes {

// A parameter with the output that carries its gradient.
struct ParameterGradient {
  int input;   // the parameter
  int output;  // "grad/<parameter>"
  ir::Value* gradient;
  // What is updated: the parameter, or this rank's part of it (ir/shard.h), of
  // which the gradient then is.
  ir::Value* target;

  bool is_part(const ir::Graph& graph) const {
    return target != graph.input(input);
  }
};

// Of all parameters that have one, in the order in which gradients become
// ready: by the position of the gradient's producer, then by its result. Throws
// kGraph for a gradient of another shape.
std::vector<ParameterGradient> CollectGradients(const ir::Graph& graph);

// The input of that name, added when there is none; state starts at `initial`
// and says in which group it is updated unless that is negative. Throws kGraph
// when the name is taken by an input of another type or role.
ir::Value* TrainingInput(ir::Graph& graph, const ir::TensorType& type,
                         ir::InputRole role, const std::string& name,
                         double initial = 0, int64_t group = -1);

// Like it, a part of `ranks` of a parameter, or of state as large: the input
// that `name` makes of the parameter's name.
ir::Value* ShardInput(ir::Graph& graph, const ir::Value& parameter,
                      std::string (*name)(std::string_view), int64_t ranks);

// Parameters of one group are updated alike: attribute `group` of state that
// all updates treat alike, so that it lies in memory as the parameters do.
int64_t UpdateGroup(const OptimizerOptions& options, ir::InputRole role);

// The i32 scalar that counts micro-batches.
ir::Value* MicroBatchCount(ir::Graph& graph);

// `path`, with the line of the model that makes the loss: of what belongs to
// the step and to no layer.
ir::Location StepLocation(const ir::Graph& graph, const char* path);

// Of all elements, an f32 scalar.
ir::Value* SumOfSquares(ir::Builder& builder, ir::Value* value);

// The f32 scalar that gradients are multiplied by, or null for 1.
ir::Value* LossScale(ir::Graph& graph, const LossScaleOptions& options);

}  // namespace fusor::passes
