#include "runtime/cpu/llvm_emitter.h"

#include <llvm/IR/Verifier.h>
#include <llvm/Support/raw_ostream.h>

#include <functional>

#include "ir/support/error.h"
#include "runtime/cpu/llvm_random.h"
#include "runtime/cpu/llvm_scalar.h"

namespace fusor::cpu {
namespace {

using codegen::Axis;
using codegen::Index;
using codegen::Kernel;
using codegen::Phase;
using codegen::Stmt;
using codegen::StmtKind;
using llvm::BasicBlock;
using llvm::Value;

// Loops of at most this many iterations are written out.
constexpr int64_t kMaxUnrolled = 4;

class PhaseEmitter {
 public:
  PhaseEmitter(const Kernel& kernel, const Phase& phase, bool native_bf16,
               llvm::Module& module, const std::string& name)
      : kernel_(kernel),
        phase_(phase),
        b_(module.getContext(), kernel.lanes, native_bf16),
        ir_(b_.ir()),
        axis_(kernel.axes.size(), nullptr),
        registers_(kernel.registers.size(), nullptr) {
    llvm::Type* i64 = ir_.getInt64Ty();
    auto* type = llvm::FunctionType::get(ir_.getVoidTy(),
                                         {ir_.getPtrTy(), i64, i64}, false);
    function_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage,
                                       name, module);
    function_->addFnAttr(llvm::Attribute::NoUnwind);
    llvm::FastMathFlags flags;
    flags.setAllowContract(kernel.contract);
    ir_.setFastMathFlags(flags);
  }

  void Emit() {
    entry_ = Block("entry");
    ir_.SetInsertPoint(entry_);
    for (size_t i = 0; i < kernel_.buffers.size(); ++i) {
      Value* slot =
          ir_.CreateConstGEP1_64(ir_.getPtrTy(), function_->getArg(0), i);
      buffers_.push_back(ir_.CreateLoad(ir_.getPtrTy(), slot));
    }
    BasicBlock* body = Block("tasks");
    ir_.SetInsertPoint(body);
    EmitTasks();
    ir_.CreateRetVoid();
    // Allocas of registers were added to the entry block meanwhile.
    ir_.SetInsertPoint(entry_);
    ir_.CreateBr(body);
  }

 private:
  using Body = std::function<void()>;
  using LoopBody = std::function<void(Value* i)>;

  BasicBlock* Block(const char* name) {
    return BasicBlock::Create(ir_.getContext(), name, function_);
  }
  Value* I64(int64_t value) { return ir_.getInt64(value); }

  int64_t Groups(const Axis& axis) const {
    return axis.vector ? (axis.extent + kernel_.lanes - 1) / kernel_.lanes
                       : axis.extent;
  }

  // --- Control flow ---------------------------------------------------------

  // for (i = begin; i < end; ++i) body(i), REQUIRES begin < end.
  void CountedLoop(Value* begin, Value* end, const LoopBody& body) {
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

  void If(Value* condition, const Body& body) {
    BasicBlock* then = Block("then");
    BasicBlock* after = Block("after");
    ir_.CreateCondBr(condition, then, after);
    ir_.SetInsertPoint(then);
    body();
    ir_.CreateBr(after);
    ir_.SetInsertPoint(after);
  }

  // Runs `body` with the vector axis at a group: its index is group * lanes.
  void AtGroup(int axis, Value* group, bool masked, const Body& body) {
    axis_[axis] = ir_.CreateNUWMul(group, I64(kernel_.lanes));
    vector_axis_ = axis;
    if (masked) {
      std::vector<llvm::Constant*> bits;
      const int64_t active = kernel_.axes[axis].extent % kernel_.lanes;
      for (int lane = 0; lane < kernel_.lanes; ++lane) {
        bits.push_back(ir_.getInt1(lane < active));
      }
      mask_ = llvm::ConstantVector::get(bits);
    }
    body();
    mask_ = nullptr;
    vector_axis_ = -1;
    axis_[axis] = nullptr;
  }

  // All points or groups of `axis` from begin to end-1; the last group, when it
  // is not full, apart. REQUIRES begin < end.
  void AlongAxis(int axis, Value* begin, Value* end, const Body& body) {
    const Axis& info = kernel_.axes[axis];
    if (!info.vector) {
      CountedLoop(begin, end, [&](Value* i) {
        axis_[axis] = i;
        body();
        axis_[axis] = nullptr;
      });
      return;
    }
    const auto full = [&](Value* i) { AtGroup(axis, i, false, body); };
    const int64_t full_groups = info.extent / kernel_.lanes;
    if (info.extent % kernel_.lanes == 0) {
      CountedLoop(begin, end, full);
      return;
    }
    if (full_groups > 0) {
      Value* full_end = ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end,
                                                  I64(full_groups));
      If(ir_.CreateICmpSLT(begin, full_end),
         [&] { CountedLoop(begin, full_end, full); });
    }
    If(ir_.CreateICmpSGT(end, I64(full_groups)),
       [&] { AtGroup(axis, I64(full_groups), true, body); });
  }

  // The tasks begin .. end-1: a loop along the last grid axis for each point of
  // the others, which advance like an odometer.
  void EmitTasks() {
    Value* begin = function_->getArg(1);
    Value* end = function_->getArg(2);
    std::vector<int> moving;  // grid axes of more than one group
    for (int axis : phase_.grid) {
      if (Groups(kernel_.axes[axis]) > 1) {
        moving.push_back(axis);
      } else if (!kernel_.axes[axis].vector) {
        axis_[axis] = I64(0);
      }
    }
    If(ir_.CreateICmpSLT(begin, end), [&] {
      if (moving.empty()) {
        EmitTask();
      } else if (moving.size() == 1) {
        AlongAxis(moving[0], begin, end, [&] { EmitTask(); });
      } else {
        EmitOdometer(moving, begin, end);
      }
    });
  }

  void EmitOdometer(const std::vector<int>& moving, Value* begin, Value* end) {
    const size_t last = moving.size() - 1;
    std::vector<Value*> start(moving.size());
    Value* rest = begin;
    for (size_t i = moving.size(); i-- > 0;) {
      Value* extent = I64(Groups(kernel_.axes[moving[i]]));
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
    Value* room =
        ir_.CreateSub(I64(Groups(kernel_.axes[moving[last]])), position[last]);
    Value* run = ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, room,
                                           ir_.CreateSub(end, task));
    for (size_t i = 0; i < last; ++i) axis_[moving[i]] = position[i];
    AlongAxis(moving[last], position[last], ir_.CreateAdd(position[last], run),
              [&] { EmitTask(); });
    BasicBlock* latch = ir_.GetInsertBlock();
    Value* next_task = ir_.CreateAdd(task, run);
    position.back()->addIncoming(next_task, latch);
    position[last]->addIncoming(I64(0), latch);
    Value* carry = I64(1);
    for (size_t i = last; i-- > 0;) {
      Value* next = ir_.CreateAdd(position[i], carry);
      Value* wraps =
          ir_.CreateICmpEQ(next, I64(Groups(kernel_.axes[moving[i]])));
      position[i]->addIncoming(ir_.CreateSelect(wraps, I64(0), next), latch);
      carry = ir_.CreateZExt(wraps, ir_.getInt64Ty());
      axis_[moving[i]] = nullptr;
    }
    ir_.CreateCondBr(ir_.CreateICmpSLT(next_task, end), loop, after);
    ir_.SetInsertPoint(after);
  }

  // The body at the present grid point; a vector axis of one group is opened
  // here.
  void EmitTask() {
    const int last = phase_.grid.empty() ? -1 : phase_.grid.back();
    if (last >= 0 && kernel_.axes[last].vector &&
        Groups(kernel_.axes[last]) == 1) {
      const bool masked = kernel_.axes[last].extent != kernel_.lanes;
      AtGroup(last, I64(0), masked, [&] { EmitBody(phase_.body); });
    } else {
      EmitBody(phase_.body);
    }
  }

  void EmitBody(const std::vector<Stmt>& body) {
    for (const Stmt& stmt : body) EmitStmt(stmt);
  }

  void EmitLoop(const Stmt& stmt) {
    const Axis& axis = kernel_.axes[stmt.axis];
    const bool leaf = std::none_of(
        stmt.body.begin(), stmt.body.end(),
        [](const Stmt& inner) { return inner.kind == StmtKind::kLoop; });
    const int64_t groups = Groups(axis);
    if (leaf && groups <= kMaxUnrolled) {
      for (int64_t i = 0; i < groups; ++i) EmitIteration(stmt, i);
      return;
    }
    AlongAxis(stmt.axis, I64(0), I64(groups), [&] { EmitBody(stmt.body); });
  }

  void EmitIteration(const Stmt& stmt, int64_t i) {
    const Axis& axis = kernel_.axes[stmt.axis];
    if (axis.vector) {
      AtGroup(stmt.axis, I64(i), (i + 1) * kernel_.lanes > axis.extent,
              [&] { EmitBody(stmt.body); });
      return;
    }
    axis_[stmt.axis] = I64(i);
    EmitBody(stmt.body);
    axis_[stmt.axis] = nullptr;
  }

  // --- Registers ------------------------------------------------------------

  const codegen::Register& Info(int reg) const {
    return kernel_.registers[reg];
  }

  // Registers are stack slots; mem2reg turns them into values.
  llvm::AllocaInst* Slot(int reg) {
    if (registers_[reg] == nullptr) {
      const llvm::IRBuilder<>::InsertPointGuard guard(ir_);
      ir_.SetInsertPoint(entry_);
      registers_[reg] = ir_.CreateAlloca(
          b_.TypeOf(ArithOf(Info(reg).dtype), Info(reg).vector));
    }
    return registers_[reg];
  }

  TypedValue Get(int reg) {
    llvm::AllocaInst* slot = Slot(reg);
    return {ir_.CreateLoad(slot->getAllocatedType(), slot),
            ArithOf(Info(reg).dtype)};
  }

  void Set(const Stmt& stmt, Value* value) {
    const codegen::Register& info = Info(stmt.dst);
    if (stmt.round) value = b_.Round(value, info.dtype);
    if (info.vector) value = b_.Splat(value);
    ir_.CreateStore(value, Slot(stmt.dst));
  }

  // --- Statements -----------------------------------------------------------

  void EmitStmt(const Stmt& stmt) {
    switch (stmt.kind) {
      case StmtKind::kLoop:
        return EmitLoop(stmt);
      case StmtKind::kConstant:
        return Set(stmt, b_.Constant(Info(stmt.dst).dtype,
                                     Info(stmt.dst).vector, stmt.constant));
      case StmtKind::kLoad:
        return EmitLoad(stmt);
      case StmtKind::kStore:
        return EmitStore(stmt);
      case StmtKind::kIndexValue:
        return Set(stmt,
                   b_.Convert(IndexValue(stmt.index, Info(stmt.dst).vector),
                              Arith::kI64, ArithOf(Info(stmt.dst).dtype)));
      case StmtKind::kRandom:
        return EmitRandom(stmt);
      case StmtKind::kCompute: {
        std::vector<TypedValue> operands;
        for (int i = 0; i < ir::ScalarArity(stmt.op); ++i) {
          operands.push_back(Get(stmt.src[i]));
        }
        const codegen::Register& info = Info(stmt.dst);
        return Set(stmt,
                   EmitScalar(b_, stmt.op, operands, info.dtype, info.vector));
      }
      case StmtKind::kInit:
        return Set(stmt,
                   b_.Constant(Info(stmt.dst).dtype, Info(stmt.dst).vector,
                               ir::ReductionIdentity(stmt.op)));
      case StmtKind::kAccumulate:
        return EmitAccumulate(stmt);
      case StmtKind::kReduceLanes:
        return EmitReduceLanes(stmt);
    }
  }

  void EmitAccumulate(const Stmt& stmt) {
    const codegen::Register& info = Info(stmt.dst);
    const TypedValue operands[] = {Get(stmt.dst), Get(stmt.src[0])};
    Value* sum = EmitScalar(b_, stmt.op, operands, info.dtype, info.vector);
    if (mask_ != nullptr && info.vector) {
      sum = ir_.CreateSelect(mask_, sum, operands[0].value);
    }
    Set(stmt, sum);
  }

  // The upper half of the lanes onto the lower, until one is left.
  void EmitReduceLanes(const Stmt& stmt) {
    TypedValue lanes = Get(stmt.src[0]);
    const ir::DType dtype = Info(stmt.dst).dtype;
    int half = kernel_.lanes / 2;
    for (; half >= 1; half /= 2) {
      std::vector<int> low, high;
      for (int i = 0; i < half; ++i) {
        low.push_back(i);
        high.push_back(half + i);
      }
      const TypedValue pair[] = {
          {ir_.CreateShuffleVector(lanes.value, low), lanes.arith},
          {ir_.CreateShuffleVector(lanes.value, high), lanes.arith}};
      // Not splat to the kernel's lanes: a vector of `half` lanes.
      lanes = {EmitScalar(b_, stmt.op, pair, dtype, false), ArithOf(dtype)};
    }
    Set(stmt, b_.Convert(ir_.CreateExtractElement(lanes.value, uint64_t{0}),
                         lanes.arith, ArithOf(dtype)));
  }

  void EmitRandom(const Stmt& stmt) {
    const auto as_i64 = [&](int reg) {
      const TypedValue value = Get(reg);
      return b_.Convert(value.value, value.arith, Arith::kI64);
    };
    const codegen::Register& info = Info(stmt.dst);
    Value* uniform =
        EmitUniform(b_, as_i64(stmt.src[0]), as_i64(stmt.src[1]), stmt.site,
                    stmt.rank, IndexValue(stmt.index, info.vector));
    Set(stmt, b_.Convert(uniform, Arith::kF32, ArithOf(info.dtype)));
  }

  // --- Memory ---------------------------------------------------------------

  int64_t LaneStride(const Index& index) const {
    for (const Index::Term& term : index.terms) {
      if (term.axis == vector_axis_) return term.coefficient;
    }
    return 0;
  }

  // Of the first lane.
  Value* ScalarIndex(const Index& index) {
    Value* sum = I64(index.offset);
    for (const Index::Term& term : index.terms) {
      if (term.coefficient == 0) continue;
      sum = ir_.CreateNSWAdd(
          sum, ir_.CreateNSWMul(axis_[term.axis], I64(term.coefficient)));
    }
    return sum;
  }

  // 0, stride, 2 * stride, ...
  Value* LaneOffsets(int64_t stride) {
    std::vector<llvm::Constant*> offsets;
    for (int lane = 0; lane < kernel_.lanes; ++lane) {
      offsets.push_back(ir_.getInt64(lane * stride));
    }
    return llvm::ConstantVector::get(offsets);
  }

  Value* IndexValue(const Index& index, bool vector) {
    Value* first = ScalarIndex(index);
    if (!vector) return first;
    const int64_t stride = LaneStride(index);
    return stride == 0 ? b_.Splat(first)
                       : ir_.CreateAdd(b_.Splat(first), LaneOffsets(stride));
  }

  // How a statement reaches its buffer: one element (lane stride 0), adjacent
  // ones, or each lane its own.
  struct Place {
    Value* pointer;   // of the first lane
    Value* pointers;  // of all lanes; null unless the stride is beyond 1
    int64_t stride;
    llvm::Type* element;
    llvm::Align align;
  };

  Place PlaceOf(const Stmt& stmt) {
    const ir::DType dtype = kernel_.buffers[stmt.buffer].dtype;
    Place place{};
    place.element = b_.MemoryType(dtype);
    place.align = llvm::Align(static_cast<uint64_t>(ir::DTypeSize(dtype)));
    place.stride = vector_axis_ < 0 ? 0 : LaneStride(stmt.index);
    place.pointer = ir_.CreateInBoundsGEP(place.element, buffers_[stmt.buffer],
                                          ScalarIndex(stmt.index));
    if (place.stride != 0 && place.stride != 1) {
      place.pointers = ir_.CreateInBoundsGEP(place.element, place.pointer,
                                             LaneOffsets(place.stride));
    }
    return place;
  }

  void EmitLoad(const Stmt& stmt) {
    const Place place = PlaceOf(stmt);
    Value* value = nullptr;
    auto* vector = llvm::FixedVectorType::get(place.element, kernel_.lanes);
    if (place.stride == 0) {
      value = ir_.CreateAlignedLoad(place.element, place.pointer, place.align);
    } else if (place.pointers != nullptr) {
      value = ir_.CreateMaskedGather(vector, place.pointers, place.align, mask_,
                                     ZeroWhereMasked(vector));
    } else if (mask_ != nullptr) {
      value = ir_.CreateMaskedLoad(vector, place.pointer, place.align, mask_,
                                   ZeroWhereMasked(vector));
    } else {
      value = ir_.CreateAlignedLoad(vector, place.pointer, place.align);
    }
    const ir::DType from = kernel_.buffers[stmt.buffer].dtype;
    Set(stmt, b_.ConvertFor(b_.FromMemory(value, from), ArithOf(from),
                            Info(stmt.dst).dtype));
  }

  Value* ZeroWhereMasked(llvm::Type* type) {
    return mask_ == nullptr ? llvm::PoisonValue::get(type)
                            : llvm::Constant::getNullValue(type);
  }

  void EmitStore(const Stmt& stmt) {
    const Place place = PlaceOf(stmt);
    const TypedValue source = Get(stmt.src[0]);
    Value* value = b_.ToMemory(source.value, source.arith,
                               kernel_.buffers[stmt.buffer].dtype);
    if (place.stride == 0) {
      ir_.CreateAlignedStore(value, place.pointer, place.align);
      return;
    }
    value = b_.Splat(value);
    if (place.pointers != nullptr) {
      ir_.CreateMaskedScatter(value, place.pointers, place.align, mask_);
    } else if (mask_ != nullptr) {
      ir_.CreateMaskedStore(value, place.pointer, place.align, mask_);
    } else {
      ir_.CreateAlignedStore(value, place.pointer, place.align);
    }
  }

  const Kernel& kernel_;
  const Phase& phase_;
  ValueBuilder b_;
  llvm::IRBuilder<>& ir_;
  llvm::Function* function_ = nullptr;
  BasicBlock* entry_ = nullptr;
  std::vector<Value*> buffers_;
  std::vector<Value*> axis_;  // index of each open axis, i64
  std::vector<llvm::AllocaInst*> registers_;
  int vector_axis_ = -1;
  Value* mask_ = nullptr;  // in the last, partial group
};

}  // namespace

std::string PhaseSymbol(size_t phase) {
  return fmt::format("fusor_p{}", phase);
}

void EmitKernel(const Kernel& kernel, bool native_bf16, llvm::Module& module) {
  for (size_t k = 0; k < kernel.phases.size(); ++k) {
    PhaseEmitter(kernel, kernel.phases[k], native_bf16, module, PhaseSymbol(k))
        .Emit();
  }
  std::string problem;
  llvm::raw_string_ostream stream(problem);
  FUSOR_ASSERT(!llvm::verifyModule(module, &stream), "kernel {}: {}",
               kernel.name, problem);
}

}  // namespace fusor::cpu
