#include "codegen/cpu/kernel_emitter.h"

namespace fusor::cpu {
using codegen::Axis;
using llvm::BasicBlock;
using llvm::Value;

LoopBuilder::LoopBuilder(const codegen::Kernel& kernel,
                         llvm::Function* function, llvm::IRBuilder<>& ir)
    : kernel_(kernel),
      function_(function),
      ir_(ir),
      index_(kernel.axes.size(), nullptr),
      is_tile_axis_(kernel.axes.size(), false) {
  for (const codegen::Register& reg : kernel.registers) {
    for (const int axis : reg.tile) is_tile_axis_[axis] = true;
  }
}

BasicBlock* LoopBuilder::Block(const char* name) {
  return BasicBlock::Create(ir_.getContext(), name, function_);
}

int64_t LoopBuilder::Groups(int axis) const {
  const Axis& info = kernel_.axes[axis];
  return info.vector ? (info.extent + kernel_.lanes - 1) / kernel_.lanes
                     : info.extent;
}

void LoopBuilder::CountedLoop(Value* begin, Value* end,
                              const CountedBody& body) {
  BasicBlock* before = ir_.GetInsertBlock();
  BasicBlock* loop = Block("loop");
  BasicBlock* after = Block("after");
  ir_.CreateBr(loop);
  ir_.SetInsertPoint(loop);
  llvm::PHINode* i = ir_.CreatePHI(ir_.getInt64Ty(), 2);
  i->addIncoming(begin, before);
  body(i);
  Value* next = ir_.CreateNUWAdd(i, I64(1));
  i->addIncoming(next, ir_.GetInsertBlock());
  ir_.CreateCondBr(ir_.CreateICmpSLT(next, end), loop, after);
  ir_.SetInsertPoint(after);
}

void LoopBuilder::If(Value* condition, const Body& body) {
  BasicBlock* then = Block("then");
  BasicBlock* after = Block("after");
  ir_.CreateCondBr(condition, then, after);
  ir_.SetInsertPoint(then);
  body();
  ir_.CreateBr(after);
  ir_.SetInsertPoint(after);
}

void LoopBuilder::AtIndex(int axis, Value* i, const Body& body) {
  index_[axis] = i;
  body();
  index_[axis] = nullptr;
}

void LoopBuilder::AtGroup(int axis, Value* group, bool masked,
                          const Body& body) {
  vector_axis_ = axis;
  if (masked) {
    std::vector<llvm::Constant*> bits;
    const int64_t active = kernel_.axes[axis].extent % kernel_.lanes;
    for (int lane = 0; lane < kernel_.lanes; ++lane) {
      bits.push_back(ir_.getInt1(lane < active));
    }
    mask_ = llvm::ConstantVector::get(bits);
  }
  AtIndex(axis, ir_.CreateNUWMul(group, I64(kernel_.lanes)), body);
  mask_ = nullptr;
  vector_axis_ = -1;
}

void LoopBuilder::AlongAxis(int axis, Value* begin, Value* end,
                            const Body& body) {
  const Axis& info = kernel_.axes[axis];
  if (!info.vector) {
    CountedLoop(begin, end, [&](Value* i) { AtIndex(axis, i, body); });
    return;
  }
  const auto full = [&](Value* i) { AtGroup(axis, i, false, body); };
  const int64_t full_groups = info.extent / kernel_.lanes;
  if (info.extent % kernel_.lanes == 0) {
    CountedLoop(begin, end, full);
    return;
  }
  if (full_groups > 0) {
    Value* full_end =
        ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end, I64(full_groups));
    If(ir_.CreateICmpSLT(begin, full_end),
       [&] { CountedLoop(begin, full_end, full); });
  }
  If(ir_.CreateICmpSGT(end, I64(full_groups)),
     [&] { AtGroup(axis, I64(full_groups), true, body); });
}

void LoopBuilder::EmitTasks(const std::vector<int>& grid, Value* begin,
                            Value* end, const Body& body) {
  std::vector<int> moving;  // grid axes of more than one group
  for (int axis : grid) {
    if (Groups(axis) > 1) {
      moving.push_back(axis);
    } else if (!kernel_.axes[axis].vector) {
      index_[axis] = I64(0);
    }
  }
  // `task` opens a vector axis of one group.
  const int last = grid.empty() ? -1 : grid.back();
  const bool one_group =
      last >= 0 && kernel_.axes[last].vector && Groups(last) == 1;
  const Body task = [&] {
    if (!one_group) return body();
    AtGroup(last, I64(0), kernel_.axes[last].extent != kernel_.lanes, body);
  };
  If(ir_.CreateICmpSLT(begin, end), [&] {
    if (moving.empty()) {
      task();
    } else if (moving.size() == 1) {
      AlongAxis(moving[0], begin, end, task);
    } else {
      EmitOdometer(moving, begin, end, task);
    }
  });
}

void LoopBuilder::EmitOdometer(const std::vector<int>& moving, Value* begin,
                               Value* end, const Body& body) {
  const size_t last = moving.size() - 1;
  std::vector<Value*> start(moving.size());
  Value* rest = begin;
  for (size_t i = moving.size(); i-- > 0;) {
    Value* extent = I64(Groups(moving[i]));
    start[i] = i == 0 ? rest : ir_.CreateURem(rest, extent);
    rest = ir_.CreateUDiv(rest, extent);
  }
  BasicBlock* before = ir_.GetInsertBlock();
  BasicBlock* loop = Block("odometer");
  BasicBlock* after = Block("after");
  ir_.CreateBr(loop);
  ir_.SetInsertPoint(loop);
  std::vector<llvm::PHINode*> position;
  for (size_t i = 0; i <= moving.size(); ++i) {  // the last one: task number
    position.push_back(ir_.CreatePHI(ir_.getInt64Ty(), 2));
    position[i]->addIncoming(i < moving.size() ? start[i] : begin, before);
  }
  Value* task = position.back();
  Value* room = ir_.CreateSub(I64(Groups(moving[last])), position[last]);
  Value* run = ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, room,
                                         ir_.CreateSub(end, task));
  for (size_t i = 0; i < last; ++i) index_[moving[i]] = position[i];
  AlongAxis(moving[last], position[last], ir_.CreateAdd(position[last], run),
            body);
  BasicBlock* latch = ir_.GetInsertBlock();
  Value* next_task = ir_.CreateAdd(task, run);
  position.back()->addIncoming(next_task, latch);
  position[last]->addIncoming(I64(0), latch);
  Value* carry = I64(1);
  for (size_t i = last; i-- > 0;) {
    Value* next = ir_.CreateAdd(position[i], carry);
    Value* wraps = ir_.CreateICmpEQ(next, I64(Groups(moving[i])));
    position[i]->addIncoming(ir_.CreateSelect(wraps, I64(0), next), latch);
    carry = ir_.CreateZExt(wraps, ir_.getInt64Ty());
    index_[moving[i]] = nullptr;
  }
  ir_.CreateCondBr(ir_.CreateICmpSLT(next_task, end), loop, after);
  ir_.SetInsertPoint(after);
}

void LoopBuilder::EmitLoop(int axis, int64_t unrolled, const Body& body) {
  const int64_t groups = Groups(axis);
  if (groups > unrolled && !is_tile_axis_[axis]) {
    AlongAxis(axis, I64(0), I64(groups), body);
    return;
  }
  const Axis& info = kernel_.axes[axis];
  for (int64_t i = 0; i < groups; ++i) {
    if (info.vector) {
      AtGroup(axis, I64(i), (i + 1) * kernel_.lanes > info.extent, body);
    } else {
      AtIndex(axis, I64(i), body);
    }
  }
}

}  // namespace fusor::cpu
