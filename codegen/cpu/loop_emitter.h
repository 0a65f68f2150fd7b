#pragma once

#include <llvm/IR/IRBuilder.h>

#include <functional>
#include <vector>

#include "codegen/kernel/kernel_ir.h"

namespace fusor::cpu {

// The control flow of one phase's function: its tasks and loops, with the last,
// partial group of a vector axis apart. Code for what happens inside is added
// by the bodies, which ask where they are.
class LoopBuilder {
 public:
  using Body = std::function<void()>;

  LoopBuilder(const codegen::Kernel& kernel, llvm::Function* function,
              llvm::IRBuilder<>& ir);

  // Tasks begin .. end-1 of the grid. A grid without a vector axis, or with
  // one, last.
  void EmitTasks(const std::vector<int>& grid, llvm::Value* begin,
                 llvm::Value* end, const Body& body);
  // All indices of the axis, or groups of its lanes; written out when they are
  // few and `leaf`: no other loop inside.
  void EmitLoop(int axis, bool leaf, const Body& body);

  // --- Where the code that is being added stands -----------------------------
  // Index of an open axis, i64; of a vector axis that of the first lane.
  llvm::Value* index(int axis) const { return index_[axis]; }
  int vector_axis() const { return vector_axis_; }  // -1 when none is open
  // Of the lanes; null when all of them are active.
  llvm::Value* mask() const { return mask_; }

 private:
  using CountedBody = std::function<void(llvm::Value* i)>;

  llvm::BasicBlock* Block(const char* name);
  llvm::Value* I64(int64_t value) { return ir_.getInt64(value); }
  int64_t Groups(int axis) const;

  // for (i = begin; i < end; ++i) body(i), REQUIRES begin < end.
  void CountedLoop(llvm::Value* begin, llvm::Value* end,
                   const CountedBody& body);
  void If(llvm::Value* condition, const Body& body);
  // Runs `body` with the vector axis at a group: its index is group * lanes.
  void AtGroup(int axis, llvm::Value* group, bool masked, const Body& body);
  void AtIndex(int axis, llvm::Value* i, const Body& body);
  // All points or groups of `axis` from begin to end-1; the last group, when it
  // is not full, apart. REQUIRES begin < end.
  void AlongAxis(int axis, llvm::Value* begin, llvm::Value* end,
                 const Body& body);
  // A loop along the last axis for each point of the others, which advance like
  // an odometer.
  void EmitOdometer(const std::vector<int>& moving, llvm::Value* begin,
                    llvm::Value* end, const Body& body);

  const codegen::Kernel& kernel_;
  llvm::Function* const function_;
  llvm::IRBuilder<>& ir_;
  std::vector<llvm::Value*> index_;  // null while an axis is not open
  int vector_axis_ = -1;
  llvm::Value* mask_ = nullptr;
};

}  // namespace fusor::cpu
