#pragma once

#include <unordered_map>

#include "ir/interpreter/interpreter.h"

namespace fusor::models {

// Values that follow from constants alone, such as a shape that a model
// computes. Finds them while a builder appends to the graph.
class KnownValues {
 public:
  // `graph` must outlive this object and only grow.
  explicit KnownValues(const ir::Graph& graph) : graph_(graph) {}

  // Declares the value of an input. Larger tensors than kMaxKnown are ignored.
  void Set(const ir::Value* input, ir::Tensor tensor);
  // Returns null if the value is unknown or large. Valid until the next call.
  const ir::Tensor* Find(const ir::Value* value);

 private:
  // In elements: enough for every shape, few enough to be cheap.
  static constexpr int64_t kMaxKnown = 1024;

  const ir::Graph& graph_;
  size_t next_ = 0;  // the first node that was not visited
  std::unordered_map<const ir::Value*, ir::Tensor> known_;
};

}  // namespace fusor::models
