#pragma once

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <functional>
#include <vector>

#include "codegen/cpu/value_builder.h"
#include "codegen/kernel/kernel_ir.h"

namespace fusor::cpu {

// Returns the name of a phase's function in a kernel's object file. It does not
// contain the kernel's name, which is not part of the kernel's identity.
std::string PhaseSymbol(size_t phase);

// Adds one function per phase to `module`:
//   void PhaseSymbol(k)(void* const* buffers, int64_t begin, int64_t end)
// It runs the phase's tasks begin .. end-1. Functions are stateless and may run
// in parallel on disjoint ranges.
void EmitKernel(const codegen::Kernel& kernel,
                const VectorExtensions& extensions, llvm::Module& module);

// Emits the control flow of one phase's function: its tasks and loops. The last
// group of a vector axis, if partial, is peeled and masked. The bodies emit the
// code inside and query the current index and mask.
class LoopBuilder {
 public:
  using Body = std::function<void()>;

  LoopBuilder(const codegen::Kernel& kernel, llvm::Function* function,
              llvm::IRBuilder<>& ir);

  // Emits tasks begin .. end-1 of the grid. Only the grid's last axis may be a
  // vector axis.
  void EmitTasks(const std::vector<int>& grid, llvm::Value* begin,
                 llvm::Value* end, const Body& body);
  // Emits a loop over all indices of the axis, or over its groups of lanes.
  // Fully unrolls a tile axis, and a loop of at most `unrolled` iterations.
  void EmitLoop(int axis, int64_t unrolled, const Body& body);
  // Returns how many indices the axis has, or groups of lanes.
  int64_t Groups(int axis) const;

  // --- State at the insertion point ------------------------------------------
  // Index of an open axis, i64. For a vector axis: index of the first lane.
  llvm::Value* index(int axis) const { return index_[axis]; }
  int vector_axis() const { return vector_axis_; }  // -1 when none is open
  // Mask of the active lanes; null if all are active.
  llvm::Value* mask() const { return mask_; }

 private:
  using CountedBody = std::function<void(llvm::Value* i)>;

  llvm::BasicBlock* Block(const char* name);
  llvm::Value* I64(int64_t value) { return ir_.getInt64(value); }

  // Emits for (i = begin; i < end; ++i) body(i). REQUIRES: begin < end.
  void CountedLoop(llvm::Value* begin, llvm::Value* end,
                   const CountedBody& body);
  void If(llvm::Value* condition, const Body& body);
  // Emits `body` for one group of the vector axis, whose index is group *
  // lanes.
  void AtGroup(int axis, llvm::Value* group, bool masked, const Body& body);
  void AtIndex(int axis, llvm::Value* i, const Body& body);
  // Emits a loop over indices or groups begin .. end-1 of `axis`; a partial
  // last group is peeled. REQUIRES: begin < end.
  void AlongAxis(int axis, llvm::Value* begin, llvm::Value* end,
                 const Body& body);
  // Emits tasks begin .. end-1 of several axes: an inner loop along the last
  // axis for each point of the others, which advance like an odometer.
  void EmitOdometer(const std::vector<int>& moving, llvm::Value* begin,
                    llvm::Value* end, const Body& body);

  const codegen::Kernel& kernel_;
  llvm::Function* const function_;
  llvm::IRBuilder<>& ir_;
  std::vector<llvm::Value*> index_;  // null while an axis is not open
  std::vector<bool> is_tile_axis_;
  int vector_axis_ = -1;
  llvm::Value* mask_ = nullptr;
};

}  // namespace fusor::cpu
