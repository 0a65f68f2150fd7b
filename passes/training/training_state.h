#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"
#include "passes/passes.h"

namespace fusor::passes {

// A parameter and the output with its gradient.
struct ParameterGradient {
  int input;   // the parameter
  int output;  // "grad/<parameter>"
  ir::Value* gradient;
  // The value to update: the parameter, or this rank's shard of it
  // (ir/shard.h). A gradient has the shape of its target.
  ir::Value* target;

  bool is_part(const ir::Graph& graph) const {
    return target != graph.input(input);
  }
};

// Returns all parameters that have a gradient, in the order in which gradients
// become ready: by the position of the gradient's producer, then by result
// index. Throws kGraph if a gradient's shape differs from its target's.
std::vector<ParameterGradient> CollectGradients(const ir::Graph& graph);

// Returns the input `name`; adds it if there is none. Added state starts at
// `initial` and belongs to update group `group` unless that is negative.
// Throws kGraph if the name is taken by an input of another type or role.
ir::Value* TrainingInput(ir::Graph& graph, const ir::TensorType& type,
                         ir::InputRole role, const std::string& name,
                         double initial = 0, int64_t group = -1);

// Adds state for one of `ranks` shards of a parameter, or of state of the same
// size, that starts at `initial`. `name` maps the parameter's name to the
// input's. Throws kGraph if that name is taken.
ir::Value* ShardInput(ir::Graph& graph, const ir::Value& parameter,
                      std::string (*name)(std::string_view), int64_t ranks,
                      double initial = 0);

// Returns the index of the first parameter group whose pattern the name
// contains; -1 if there is none.
int64_t GroupIndex(const OptimizerOptions& options, const std::string& name);

// Returns the update group of a parameter. State of one group (attribute
// `group`) is updated the same way and can be stored contiguously.
int64_t UpdateGroup(const OptimizerOptions& options,
                    const ir::Input& parameter);

// Returns the i32 scalar that counts micro-batches.
ir::Value* MicroBatchCount(ir::Graph& graph);

// Returns a location with `path` and the source line of the loss. It is for
// nodes that no layer contains, e.g. those that scale gradients.
ir::Location StepLocation(const ir::Graph& graph, const char* path);

// Returns the sum over all elements as an f32 scalar.
ir::Value* SumOfSquares(ir::Builder& builder, ir::Value* value);

// Returns the loss scale, an f32 scalar, or null if it is 1.
ir::Value* LossScale(ir::Graph& graph, const LossScaleOptions& options);

// Appends the reverse-mode gradients of the scalar `loss`, times the scalar
// `scale` unless it is null, with respect to each value of `wrt` (inputs or
// intermediate values). Returns them in that order and with the types of the
// values; zeros if the loss does not depend on a value. Erases appended nodes
// that none of them needs. Each appended node has the location of its forward
// node. Throws kGraph if the loss is not a floating-point scalar or an op on
// the path has no gradient.
std::vector<ir::Value*> BuildGradients(ir::Graph& graph, ir::Value* loss,
                                       std::span<ir::Value* const> wrt,
                                       ir::Value* scale = nullptr);

// Makes an evaluation graph read state "ema/<parameter>" instead of each
// parameter, to compile it against the state of a training program with
// ema_decay. Running statistics remain those of the parameters. `in_parts`
// returns true for parameters whose averages are sharded over ranks: the graph
// keeps reading these parameters, which must then contain the averages
// (runtime::StateStore::Show).
void ReadAverages(
    ir::Graph& graph, const std::function<bool(const std::string&)>& in_parts =
                          [](const std::string&) { return false; });

}  // namespace fusor::passes
