#pragma once

#include <array>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "codegen/kernel/kernel_builder.h"
#include "ir/graph.h"

namespace fusor::codegen {

// Returns the strides in elements, by dimension. Rank 1 is along the channels.
// REQUIRES: no tiles.
std::array<int64_t, 4> StridesOf(const ir::TensorType& type);

// Spatial position of an access, per dimension: block * scale + offset.
struct PoolPlace {
  bool tap;  // in the pooling's source; otherwise in its result
  std::array<int64_t, 2> scale;
  std::array<int64_t, 2> offset;
};

// The axes of one phase of a pooling kernel.
struct PoolAxes {
  std::array<std::vector<AxisPart>, 3> parts{};  // of images, rows, columns
  std::array<int64_t, 2> first{};                // first block: row, column
  int channel = -1;
};

// Emits statements for the values of a body with a pooling (LowerPool). Each
// element of a value is emitted once per phase.
class PoolEmitter {
 public:
  // Adds the body's inputs and outputs to the kernel's buffers. REQUIRES:
  // tensors without tiles.
  PoolEmitter(const ir::Graph& body, KernelBuilder& builder, bool eager);

  void BeginPhase(PoolAxes axes);
  // Begins an output element; Define sets the poolings' results for it.
  void BeginElement() { results_.clear(); }
  void Define(const ir::Value* result, int reg) { results_[result] = reg; }

  // Returns the register of the value's element at `place`.
  int Eval(const ir::Value* value, const PoolPlace& place);
  void StoreResult(size_t output, int value, const PoolPlace& place);

  int Constant(ir::DType dtype, double value);

  // Returns the register of an element of a depthwise filter, an operand.
  int Filter(const ir::Value* filter, int64_t row, int64_t column);

 private:
  int Make(const ir::Value* value, const PoolPlace& place);
  Index IndexOf(int buffer, const PoolPlace& place) const;

  const ir::Graph& graph_;
  KernelBuilder& builder_;
  const bool eager_;
  std::unordered_set<const ir::Value*> pooled_;  // operands of windows
  std::vector<std::array<int64_t, 4>> strides_;  // by buffer

  // State of the current phase.
  PoolAxes axes_;
  std::map<std::tuple<const ir::Value*, int, int64_t, int64_t>, int> values_;
  std::map<std::pair<ir::DType, double>, int> constants_;
  // The poolings' results for the current output element.
  std::unordered_map<const ir::Value*, int> results_;
};

}  // namespace fusor::codegen
