#pragma once

#include <array>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "codegen/lower/loop_schedule.h"
#include "ir/graph.h"

namespace fusor::codegen {

// Where a tensor is read or written, in both spatial dimensions: at index
// block * scale + offset.
struct PoolPlace {
  bool tap;  // of the pooling's source, else of its result
  std::array<int64_t, 2> scale;
  std::array<int64_t, 2> offset;
};

// The axes of a phase of a pooling's kernel.
struct PoolAxes {
  std::array<std::vector<AxisPart>, 3> parts{};  // of images, rows, columns
  std::array<int64_t, 2> first{};                // block of rows, columns
  int channel = -1;
};

// Turns values of a body with a pooling (lower_pool.h) into statements of its
// kernel: each element of a value that a cell needs once, and what is equal in
// all images and windows once a task.
class PoolEmitter {
 public:
  // Adds the body's inputs and outputs to the kernel's buffers. REQUIRES:
  // tensors without tiles.
  PoolEmitter(const ir::Graph& body, Kernel& kernel, bool eager);

  // What follows is for `body`, but for what every turn of its loop shares,
  // which goes to `outer`. The caller keeps both until the next call.
  void BeginPhase(PoolAxes axes, std::vector<Stmt>* outer,
                  std::vector<Stmt>* body);
  // What the poolings' results are, of the cell at hand; forgets the last
  // one's.
  void BeginCell() { results_.clear(); }
  void Define(const ir::Value* result, int reg) { results_[result] = reg; }

  // The register of the value's element there.
  int Eval(const ir::Value* value, const PoolPlace& place);
  void StoreResult(size_t output, int value, const PoolPlace& place);

  int Constant(ir::DType dtype, double value);
  int Compute(ir::ScalarOp op, ir::DType dtype, int a, int b = -1, int c = -1,
              bool round = false);
  // A sum of vectors, which begins at 0.
  int BeginSum(ir::DType dtype);
  void Add(int sum, int value);

 private:
  void AddBuffer(const ir::Value& value, bool written);
  int Make(const ir::Value* value, const PoolPlace& place);
  int Emit(Stmt stmt, ir::DType dtype, bool vector);
  Index IndexOf(int buffer, const PoolPlace& place) const;
  int Load(int buffer, Index index);

  const ir::Graph& graph_;
  Kernel& kernel_;
  const bool eager_;
  std::unordered_set<const ir::Value*> pooled_;  // what windows read
  std::vector<std::array<int64_t, 4>> strides_;  // by buffer

  // Of the phase at hand.
  PoolAxes axes_;
  std::vector<Stmt>* outer_ = nullptr;
  std::vector<Stmt>* body_ = nullptr;
  std::map<std::tuple<const ir::Value*, int, int64_t, int64_t>, int> values_;
  std::map<std::pair<ir::DType, double>, int> constants_;
  // Of the cell at hand: the poolings' results.
  std::unordered_map<const ir::Value*, int> results_;
};

// Whether a node of such a body is a pooling, or gathers for one.
inline bool IsPooling(const ir::Node& node) {
  return node.attrs().Has("window");
}

}  // namespace fusor::codegen
