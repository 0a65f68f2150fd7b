#pragma once

#include <map>
#include <optional>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "codegen/lower/loop_nest.h"
#include "codegen/lower/loop_schedule.h"
#include "passes/fusion/iteration_domain.h"

namespace fusor::codegen {

// Returns whether a statement must round its result in every rounding mode:
// i32 arithmetic may leave the range of u8, and u8 values must wrap around.
bool MustRound(ir::ScalarOp op, ir::DType dtype);

// Emits statements for the values of a fusion body. Each statement is emitted
// once, in the outermost open loop in which its operands are available.
class BodyEmitter {
 public:
  BodyEmitter(const ir::Graph& body, const passes::IterationDomain& domain,
              const LoopNest& nest, Kernel& kernel, bool eager)
      : body_(body),
        domain_(domain),
        nest_(nest),
        kernel_(kernel),
        eager_(eager) {}

  // Maps each axis of the nest to kernel axes. Call between phases only.
  void SetParts(std::vector<std::vector<AxisPart>> parts) {
    parts_ = std::move(parts);
  }

  // Returns everything that the body loads and stores, for LoopNest.
  static std::vector<Access> CollectAccesses(
      const ir::Graph& body, const passes::IterationDomain& domain);

  // --- Loops -----------------------------------------------------------------

  void BeginPhase(std::vector<int> grid);
  void EndPhase();
  void OpenLoop(int kernel_axis);
  void CloseLoop();  // forgets the values computed inside the loop

  // Sets Touch::time of the following loads and stores. A larger time is later.
  void set_time(int time) { time_ = time; }

  // --- Values ----------------------------------------------------------------

  // Returns the register of the value at the current indices.
  int Eval(const ir::Value* value);
  // Returns the register of the reduction's operand at the domain's indices.
  int EvalReduced(const ir::Node& reduce);
  // From now on, loads the value from `buffer`, where an earlier pass over the
  // reduction axes stored it, instead of recomputing it.
  void Hold(const ir::Value* value, int buffer) { held_[value] = buffer; }
  // Declares that `reg` holds a reduction's result until the open loop closes.
  void Define(const ir::Value* value, int reg);

  void Store(int buffer, const Access& access, int reg);
  // Emit statements that correspond to no value of the graph.
  int NewRegister(ir::DType dtype, bool vector);
  void Append(Stmt stmt);  // to the innermost open loop
  Index KernelIndex(const Index& nest_index) const;
  int LoadScratch(int buffer, Index index, ir::DType dtype);

  // --- What was accessed ---------------------------------------------------
  struct Touch {
    int buffer;
    Index index;
    int time;
  };
  const std::vector<Touch>& loads() const { return loads_; }
  const std::vector<Touch>& stores() const { return stores_; }

 private:
  struct Level {
    int axis = -1;  // kernel axis; -1 for the phase itself
    std::vector<Stmt> statements;
    std::map<const ir::Value*, int> values;
    std::vector<std::pair<Touch, int>> loaded;  // index -> register
  };

  int EvalOperand(const ir::Node& node, size_t i, const ir::IndexMap& map);
  int EvalSource(const ir::Node& node, const ir::IndexMap& map);
  int EvalElementwise(const ir::Node& node, const ir::IndexMap& map);
  int Load(int buffer, const Access& access);
  int Constant(const ir::Node& node);
  int Emit(Stmt stmt, ir::DType dtype, bool vector, size_t level);
  size_t LevelOf(const Index& index) const;
  bool IsVector(const Index& index) const;
  size_t LevelOfRegister(int reg) const { return register_level_[reg]; }

  const ir::Graph& body_;
  const passes::IterationDomain& domain_;
  const LoopNest& nest_;
  Kernel& kernel_;
  bool eager_;
  std::vector<std::vector<AxisPart>> parts_;
  std::vector<int> grid_;
  std::vector<Level> levels_;
  std::vector<size_t> register_level_;
  std::vector<Touch> loads_, stores_;
  std::map<const ir::Value*, int> held_;  // value -> buffer
  int time_ = 0;
};

}  // namespace fusor::codegen
