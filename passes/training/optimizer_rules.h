#pragma once

// The formulas of the optimizers, one function each, and what they share.

#include <string>
#include <string_view>

#include "ir/builder.h"
#include "ir/graph.h"
#include "passes/passes.h"

namespace fusor::passes {

// A parameter and its gradient, of one type.
struct UpdatedParameter {
  ir::Value* value;  // the parameter, or this rank's shard of it (ir/shard.h)
  ir::Value* gradient;
  ir::Value* whole;  // the parameter
  ir::InputRole role;

  bool is_part() const { return value != whole; }
};

// Inputs and values that all updates of a graph use. Adds input "lr", an f32
// scalar, and, for optimizers that correct a bias, the count of updates.
class UpdateContext {
 public:
  UpdateContext(ir::Graph& graph, const OptimizerOptions& options, int ranks);

  ir::Builder& builder() { return builder_; }
  const OptimizerOptions& options() const { return options_; }
  ir::Value* lr() const { return lr_; }

  double WeightDecay(const UpdatedParameter& p) const;
  // Returns the factor of the learning rate.
  double LrScale(const UpdatedParameter& p) const;
  // Returns state for a parameter, or for this rank's shard of one, of its
  // type. It starts at `initial`.
  ir::Value* StateOf(const UpdatedParameter& p,
                     std::string (*name)(std::string_view), double initial = 0);
  // Sets the next value of state.
  void Replace(const ir::Value& state, ir::Value* next);
  // Adds state `name`, an i32 scalar that counts updates from 0 on. Returns the
  // count before this update. `path` is the location of the nodes.
  ir::Value* Count(const char* name, const char* path);

  // Casts a scalar to the parameter's dtype and broadcasts it to its shape.
  ir::Value* Spread(ir::Value* scalar, const UpdatedParameter& p);
  // Returns the L2 norm, an f32 scalar. `part`: `value` is this rank's shard;
  // returns the norm of the whole tensor.
  ir::Value* Norm(ir::Value* value, bool part);
  // Returns the factors that correct the moments, f64 scalars, for t updates
  // with this one: 1 / (1 - beta1^t) and 1 / sqrt(1 - beta2^t). f32 would keep
  // only 4 digits of 1 - beta2^t at first. REQUIRES: the optimizer counts.
  ir::Value* first_correction() const { return first_correction_; }
  ir::Value* second_correction() const { return second_correction_; }

 private:
  ir::Graph& graph_;
  const OptimizerOptions& options_;
  const int ranks_;
  ir::Builder builder_;
  ir::Value* lr_ = nullptr;
  ir::Value* first_correction_ = nullptr;
  ir::Value* second_correction_ = nullptr;
};

// Returns the next value of the parameter and sets those of its state.
ir::Value* UpdateParameter(UpdateContext& context, const UpdatedParameter& p);

}  // namespace fusor::passes
