#pragma once

#include <map>
#include <vector>

#include "codegen/kernel/kernel_builder.h"
#include "codegen/lower/loop_nest.h"
#include "passes/fusion/iteration_domain.h"

namespace fusor::codegen {

// Emits statements for the values of a fusion body. Emits each once while its
// loops are open.
class BodyEmitter {
 public:
  BodyEmitter(const ir::Graph& body, const passes::IterationDomain& domain,
              const LoopNest& nest, KernelBuilder& builder, bool eager)
      : body_(body),
        domain_(domain),
        nest_(nest),
        builder_(builder),
        eager_(eager) {}

  // Maps each axis of the nest to kernel axes. Call between phases only.
  void SetParts(std::vector<std::vector<AxisPart>> parts) {
    parts_ = std::move(parts);
  }

  // Returns everything that the body loads and stores, for LoopNest, except the
  // operands of library ops.
  static std::vector<Access> CollectAccesses(
      const ir::Graph& body, const passes::IterationDomain& domain);

  // Sets Touch::time of the following loads and stores. A larger time is later.
  void set_time(int time) { time_ = time; }

  // Returns the register of the value at the current indices.
  int Eval(const ir::Value* value);
  // Does the same for a value, or an input of the body, with that map.
  int EvalAt(const ir::Value* value, const ir::IndexMap& map);
  // Returns the register of the reduction's operand at the domain's indices.
  int EvalReduced(const ir::Node& reduce);
  // From now on, loads the value from `buffer`, where an earlier pass over the
  // reduction axes stored it, instead of recomputing it.
  void Hold(const ir::Value* value, int buffer) { held_[value] = buffer; }
  // Declares that `reg` holds a reduction's result.
  void Define(const ir::Value* value, int reg);
  // Stores output `output` of the body.
  void StoreResult(size_t output);

  // --- What was accessed -----------------------------------------------------

  struct Touch {
    int buffer;
    Index index;
    int time;
    bool indexed = false;  // at further indices in registers
  };
  const std::vector<Touch>& loads() const { return loads_; }
  const std::vector<Touch>& stores() const { return stores_; }

 private:
  int EvalNode(const ir::Node& node);
  int EvalOperand(const ir::Node& node, size_t i, const ir::IndexMap& map);
  int EvalSource(const ir::Node& node, const ir::IndexMap& map);
  int EvalGather(const ir::Node& node, const ir::IndexMap& map);
  int EvalElementwise(const ir::Node& node, const ir::IndexMap& map);
  int EvalPad(const ir::Node& node, const ir::IndexMap& map);
  int EvalIndex(const ir::DimMap& map);
  int Load(int buffer, const Access& access);
  int LoadInside(int buffer, const Access& access);

  const ir::Graph& body_;
  const passes::IterationDomain& domain_;
  const LoopNest& nest_;
  KernelBuilder& builder_;
  bool eager_;
  std::vector<std::vector<AxisPart>> parts_;
  // Registers; see KernelBuilder::IsAvailable.
  std::map<const ir::Value*, int> values_;
  std::vector<std::pair<Touch, int>> loaded_;
  std::vector<Touch> loads_, stores_;
  std::map<const ir::Value*, int> held_;  // value -> buffer
  int time_ = 0;
};

}  // namespace fusor::codegen
