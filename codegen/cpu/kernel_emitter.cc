#include "codegen/cpu/kernel_emitter.h"

#include <llvm/IR/Verifier.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>
#include <cmath>

#include "codegen/cpu/scalar_emitter.h"
#include "codegen/kernel/access_analysis.h"
#include "ir/support/error.h"

namespace fusor::cpu {
namespace {

using codegen::Index;
using codegen::Kernel;
using codegen::Phase;
using codegen::Stmt;
using codegen::StmtKind;
using llvm::BasicBlock;
using llvm::Value;

// Loops without inner loops, and contractions, of at most this many iterations
// are fully unrolled.
constexpr int64_t kMaxUnrolled = 4;
constexpr int64_t kMaxContracted = 8;
// The innermost loop prefetches what it accesses this many iterations and bytes
// later, if each iteration accesses another cache line, or another half of one,
// a vector of bf16. The CPU prefetches no lines of the next page, nor those of
// more than a few arrays.
constexpr int64_t kPrefetched = 16;
constexpr int64_t kPrefetchedBytes = 2048;
constexpr int64_t kCacheLine = 64;

class PhaseEmitter {
 public:
  PhaseEmitter(const Kernel& kernel, const Phase& phase,
               const VectorExtensions& extensions, llvm::Module& module,
               const std::string& name)
      : kernel_(kernel),
        phase_(phase),
        b_(module.getContext(), kernel.lanes, extensions),
        ir_(b_.ir()),
        function_(Declare(name, module)),
        loops_(kernel, function_, ir_),
        registers_(kernel.registers.size()) {
    llvm::FastMathFlags flags;
    flags.setAllowContract(kernel.contract);
    ir_.setFastMathFlags(flags);
  }

  void Emit() {
    entry_ = BasicBlock::Create(ir_.getContext(), "entry", function_);
    ir_.SetInsertPoint(entry_);
    for (size_t i = 0; i < kernel_.buffers.size(); ++i) {
      const codegen::KernelBuffer& buffer = kernel_.buffers[i];
      if (buffer.local) {
        auto* memory = ir_.CreateAlloca(
            llvm::ArrayType::get(b_.MemoryType(buffer.dtype), buffer.elements));
        memory->setAlignment(llvm::Align(codegen::kBufferAlignment));
        buffers_.push_back(memory);
        continue;
      }
      Value* slot =
          ir_.CreateConstGEP1_64(ir_.getPtrTy(), function_->getArg(0), i);
      buffers_.push_back(ir_.CreateLoad(ir_.getPtrTy(), slot));
    }
    auto* body = BasicBlock::Create(ir_.getContext(), "tasks", function_);
    ir_.SetInsertPoint(body);
    loops_.EmitTasks(phase_.grid, function_->getArg(1), function_->getArg(2),
                     [&] { EmitBody(phase_.body); });
    ir_.CreateRetVoid();
    // Emitting the body added the registers' allocas to the entry block.
    ir_.SetInsertPoint(entry_);
    ir_.CreateBr(body);
  }

 private:
  llvm::Function* Declare(const std::string& name, llvm::Module& module) {
    llvm::Type* i64 = ir_.getInt64Ty();
    auto* type = llvm::FunctionType::get(ir_.getVoidTy(),
                                         {ir_.getPtrTy(), i64, i64}, false);
    auto* function = llvm::Function::Create(
        type, llvm::Function::ExternalLinkage, name, module);
    function->addFnAttr(llvm::Attribute::NoUnwind);
    return function;
  }

  Value* I64(int64_t value) { return ir_.getInt64(value); }

  void EmitBody(const std::vector<Stmt>& body) {
    for (const Stmt& stmt : body) EmitStmt(stmt);
  }

  void EmitLoop(const Stmt& stmt) {
    const bool leaf =
        std::none_of(stmt.body.begin(), stmt.body.end(), codegen::Iterates);
    const int64_t unrolled = leaf ? kMaxUnrolled : 0;
    loops_.EmitLoop(stmt.axis, unrolled, [&] {
      if (leaf && loops_.Groups(stmt.axis) > unrolled) innermost_ = stmt.axis;
      EmitBody(stmt.body);
      innermost_ = -1;
    });
  }

  void EmitContract(const Stmt& stmt) {
    loops_.EmitLoop(stmt.axis, kMaxContracted, [&] {
      EmitBody(stmt.body);
      EmitProducts(stmt, 0);
    });
  }

  // Emits dst += src[0] * src[1] along the tile axes of dst from `depth` on.
  void EmitProducts(const Stmt& stmt, size_t depth) {
    const codegen::Register& info = Info(stmt.dst);
    if (depth < info.tile.size()) {
      return loops_.EmitLoop(info.tile[depth], 0,
                             [&] { EmitProducts(stmt, depth + 1); });
    }
    const Arith arith = ArithOf(info.dtype);
    const auto factor = [&](int i) {
      const TypedValue value = Get(stmt.src[i]);
      Value* converted = b_.Convert(value.value, value.arith, arith);
      return info.vector ? b_.Splat(converted) : converted;
    };
    Value* const a = factor(0);
    Value* const b = factor(1);
    Value* const acc = Get(stmt.dst).value;
    Set(stmt, codegen::IsFloat(arith)
                  ? ir_.CreateIntrinsic(llvm::Intrinsic::fmuladd,
                                        {acc->getType()}, {a, b, acc})
                  : ir_.CreateAdd(acc, ir_.CreateMul(a, b)));
  }

  // --- Registers ------------------------------------------------------------

  const codegen::Register& Info(int reg) const {
    return kernel_.registers[reg];
  }

  // Registers are stack slots, which SROA promotes to SSA values.
  llvm::AllocaInst* Slot(int reg) {
    const codegen::Register& info = Info(reg);
    registers_[reg].resize(TileSize(kernel_, info));
    llvm::AllocaInst*& slot = registers_[reg][TilePosition(info)];
    if (slot == nullptr) {
      const llvm::IRBuilder<>::InsertPointGuard guard(ir_);
      ir_.SetInsertPoint(entry_);
      slot = ir_.CreateAlloca(b_.TypeOf(ArithOf(info.dtype), info.vector));
    }
    return slot;
  }

  // Returns the number of the tile register's value at the current indices,
  // which are constant: loops over tile axes are unrolled.
  uint64_t TilePosition(const codegen::Register& reg) const {
    uint64_t position = 0;
    for (const int axis : reg.tile) {
      position =
          position * kernel_.axes[axis].extent +
          llvm::cast<llvm::ConstantInt>(loops_.index(axis))->getZExtValue();
    }
    return position;
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
      case StmtKind::kContract:
        return EmitContract(stmt);
      case StmtKind::kConstant:
        return Set(stmt, b_.Constant(Info(stmt.dst).dtype,
                                     Info(stmt.dst).vector, stmt.constant));
      case StmtKind::kLoad:
        return EmitLoad(stmt);
      case StmtKind::kStore:
        return EmitStore(stmt);
      case StmtKind::kGather:
        return EmitGather(stmt);
      case StmtKind::kScatterAdd:
        return EmitScatterAdd(stmt);
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
      case StmtKind::kStoreTile:
        return EmitStoreTile(stmt);
      case StmtKind::kReduceBlock:
      case StmtKind::kDot:
      case StmtKind::kStoreMatrix:
      case StmtKind::kBarrier:
      case StmtKind::kGuard:
        FUSOR_ASSERT(false, "kernel {}: a thread block on a CPU", kernel_.name);
    }
  }

  void EmitAccumulate(const Stmt& stmt) {
    const codegen::Register& info = Info(stmt.dst);
    const TypedValue operands[] = {Get(stmt.dst), Get(stmt.src[0])};
    Value* sum = EmitScalar(b_, stmt.op, operands, info.dtype, info.vector);
    if (loops_.mask() != nullptr && info.vector) {
      sum = ir_.CreateSelect(loops_.mask(), sum, operands[0].value);
    }
    Set(stmt, sum);
  }

  // Combines the upper half of the lanes with the lower until one is left.
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
      // A vector of `half` lanes, not broadcast to the kernel's lanes.
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
      if (term.axis == loops_.vector_axis()) return term.coefficient;
    }
    return 0;
  }

  // Returns the index of the first lane.
  Value* ScalarIndex(const Index& index) {
    Value* sum = I64(index.offset);
    for (const Index::Term& term : index.terms) {
      if (term.coefficient == 0) continue;
      sum = ir_.CreateNSWAdd(sum, ir_.CreateNSWMul(loops_.index(term.axis),
                                                   I64(term.coefficient)));
    }
    return sum;
  }

  // Returns the vector 0, stride, 2 * stride, ...
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

  // How a statement accesses its buffer: one element for all lanes (stride 0),
  // adjacent elements (stride 1), or one pointer per lane.
  struct Place {
    Value* pointer;   // of the first lane
    Value* pointers;  // of all lanes; null if the stride is 0 or 1
    int64_t stride;
    llvm::Type* element;
    llvm::Align align;
  };

  Place PlaceOf(const Stmt& stmt) {
    const ir::DType dtype = kernel_.buffers[stmt.buffer].dtype;
    Place place{};
    place.element = b_.MemoryType(dtype);
    place.align = llvm::Align(static_cast<uint64_t>(ir::DTypeSize(dtype)));
    place.stride = loops_.vector_axis() < 0 ? 0 : LaneStride(stmt.index);
    place.pointer = ir_.CreateInBoundsGEP(place.element, buffers_[stmt.buffer],
                                          ScalarIndex(stmt.index));
    if (place.stride != 0 && place.stride != 1) {
      place.pointers = ir_.CreateInBoundsGEP(place.element, place.pointer,
                                             LaneOffsets(place.stride));
    }
    return place;
  }

  // Bitmask: the lanes' bits form one integer, the first lane's bit lowest.
  struct Bits {
    llvm::Type* integer;
    Value* pointer;
    llvm::Align align;
  };

  Bits BitsOf(const Stmt& stmt) {
    Value* byte = ir_.CreateLShr(ScalarIndex(stmt.index), I64(3), "", true);
    return {ir_.getIntNTy(kernel_.lanes),
            ir_.CreateInBoundsGEP(ir_.getInt8Ty(), buffers_[stmt.buffer], byte),
            llvm::Align(static_cast<uint64_t>(kernel_.lanes) / 8)};
  }

  void EmitLoadBits(const Stmt& stmt) {
    const Bits bits = BitsOf(stmt);
    Value* integer =
        ir_.CreateAlignedLoad(bits.integer, bits.pointer, bits.align);
    Value* bools = ir_.CreateBitCast(integer, b_.TypeOf(Arith::kBool, true));
    Set(stmt, b_.Convert(bools, Arith::kBool, ArithOf(Info(stmt.dst).dtype)));
  }

  void EmitStoreBits(const Stmt& stmt) {
    const Bits bits = BitsOf(stmt);
    const TypedValue source = Get(stmt.src[0]);
    Value* bools =
        b_.Splat(b_.Convert(source.value, source.arith, Arith::kBool));
    ir_.CreateAlignedStore(ir_.CreateBitCast(bools, bits.integer), bits.pointer,
                           bits.align);
  }

  void EmitLoad(const Stmt& stmt) {
    if (kernel_.buffers[stmt.buffer].packed) return EmitLoadBits(stmt);
    const Place place = PlaceOf(stmt);
    Value* value = nullptr;
    auto* vector = llvm::FixedVectorType::get(place.element, kernel_.lanes);
    if (place.stride == 0) {
      value = ir_.CreateAlignedLoad(place.element, place.pointer, place.align);
    } else if (place.pointers != nullptr) {
      value = ir_.CreateMaskedGather(vector, place.pointers, place.align,
                                     loops_.mask(), ZeroWhereMasked(vector));
    } else if (loops_.mask() != nullptr) {
      value = ir_.CreateMaskedLoad(vector, place.pointer, place.align,
                                   loops_.mask(), ZeroWhereMasked(vector));
    } else {
      value = ir_.CreateAlignedLoad(vector, place.pointer, place.align);
      Prefetch(stmt, place);
    }
    const ir::DType from = kernel_.buffers[stmt.buffer].dtype;
    Set(stmt, b_.ConvertFor(b_.FromMemory(value, from), ArithOf(from),
                            Info(stmt.dst).dtype));
  }

  Value* ZeroWhereMasked(llvm::Type* type) {
    return loops_.mask() == nullptr ? llvm::PoisonValue::get(type)
                                    : llvm::Constant::getNullValue(type);
  }

  void EmitStore(const Stmt& stmt) {
    if (kernel_.buffers[stmt.buffer].packed) return EmitStoreBits(stmt);
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
      ir_.CreateMaskedScatter(value, place.pointers, place.align,
                              loops_.mask());
    } else if (loops_.mask() != nullptr) {
      ir_.CreateMaskedStore(value, place.pointer, place.align, loops_.mask());
    } else {
      ir_.CreateAlignedStore(value, place.pointer, place.align);
      Prefetch(stmt, place);
    }
  }

  // Prefetches a vector that a load or store accesses later.
  void Prefetch(const Stmt& stmt, const Place& place) {
    const codegen::KernelBuffer& buffer = kernel_.buffers[stmt.buffer];
    if (innermost_ < 0 || buffer.local) return;
    const bool vector = kernel_.axes[innermost_].vector;
    const int64_t size = ir::DTypeSize(buffer.dtype);
    const int64_t step = codegen::CoefficientOf(stmt.index, innermost_) * size *
                         (vector ? kernel_.lanes : 1);
    if (step < kCacheLine / 2) return;
    const int64_t ahead = std::max(kPrefetched * step, kPrefetchedBytes);
    const bool writes = stmt.kind == StmtKind::kStore;
    for (int64_t at = 0; at < kernel_.lanes * size; at += kCacheLine) {
      Value* later =
          ir_.CreateConstGEP1_64(ir_.getInt8Ty(), place.pointer, ahead + at);
      ir_.CreateIntrinsic(llvm::Intrinsic::prefetch, {later->getType()},
                          {later, ir_.getInt32(writes ? 1 : 0), ir_.getInt32(3),
                           ir_.getInt32(1)});
    }
  }

  // --- Elements at indices in registers --------------------------------------

  // The element of a statement with indexed terms: one pointer, that of the
  // first lane, if all lanes have the same index, otherwise one per lane.
  struct IndexedPlace {
    Value* pointer;
    Value* inside;  // i1 or a vector of them
    bool per_lane;
    int64_t stride;  // of the lanes, unless per_lane
    llvm::Type* element;
    llvm::Align align;
  };

  // Elements outside get the pointer of index 0. `vector`: the statement is
  // executed for all lanes.
  IndexedPlace IndexedPlaceOf(const Stmt& stmt, bool vector) {
    const ir::DType dtype = kernel_.buffers[stmt.buffer].dtype;
    IndexedPlace place{};
    place.element = b_.MemoryType(dtype);
    place.align = llvm::Align(static_cast<uint64_t>(ir::DTypeSize(dtype)));
    place.per_lane =
        std::any_of(stmt.indexed.begin(), stmt.indexed.end(),
                    [&](const auto& term) { return Info(term.reg).vector; });
    place.stride = vector ? LaneStride(stmt.index) : 0;
    Value* offset =
        place.per_lane ? IndexValue(stmt.index, true) : ScalarIndex(stmt.index);
    for (const codegen::IndexedTerm& term : stmt.indexed) {
      const TypedValue reg = Get(term.reg);
      Value* index = b_.Convert(reg.value, reg.arith, Arith::kI64);
      if (place.per_lane) index = b_.Splat(index);
      // As unsigned integers, negative indices are large.
      Value* inside = ir_.CreateICmpULT(index, b_.Int(index, term.extent));
      index = ir_.CreateSelect(inside, index, b_.Int(index, 0));
      offset = ir_.CreateNSWAdd(
          offset, ir_.CreateNSWMul(index, b_.Int(index, term.stride)));
      place.inside = place.inside == nullptr
                         ? inside
                         : ir_.CreateAnd(place.inside, inside);
    }
    place.pointer =
        ir_.CreateInBoundsGEP(place.element, buffers_[stmt.buffer], offset);
    if (vector && !place.per_lane && place.stride != 0 && place.stride != 1) {
      place.pointer = ir_.CreateInBoundsGEP(place.element, place.pointer,
                                            LaneOffsets(place.stride));
      place.per_lane = true;
    }
    return place;
  }

  // Returns the mask of a vector access: inside, and not a masked lane.
  Value* AccessMask(const IndexedPlace& place) {
    Value* inside = b_.Splat(place.inside);
    return loops_.mask() == nullptr ? inside
                                    : ir_.CreateAnd(inside, loops_.mask());
  }

  Value* LoadIndexed(const IndexedPlace& place, bool vector) {
    if (!vector || (!place.per_lane && place.stride == 0)) {
      return ir_.CreateAlignedLoad(place.element, place.pointer, place.align);
    }
    auto* type = llvm::FixedVectorType::get(place.element, kernel_.lanes);
    llvm::Constant* zero = llvm::Constant::getNullValue(type);
    if (place.per_lane) {
      return ir_.CreateMaskedGather(type, place.pointer, place.align,
                                    AccessMask(place), zero);
    }
    if (loops_.mask() == nullptr) {
      return ir_.CreateAlignedLoad(type, place.pointer, place.align);
    }
    return ir_.CreateMaskedLoad(type, place.pointer, place.align, loops_.mask(),
                                zero);
  }

  void EmitGather(const Stmt& stmt) {
    const codegen::Register& info = Info(stmt.dst);
    const ir::DType from = kernel_.buffers[stmt.buffer].dtype;
    const IndexedPlace place = IndexedPlaceOf(stmt, info.vector);
    Value* value = b_.FromMemory(LoadIndexed(place, info.vector), from);
    value = b_.ConvertFor(value, ArithOf(from), info.dtype);
    if (info.vector) value = b_.Splat(value);
    const double outside = ir::IsFloat(from) ? NAN : 0;
    Set(stmt, ir_.CreateSelect(place.inside, value,
                               b_.Constant(info.dtype, info.vector, outside)));
  }

  // No task accesses elements of another task, so elements at index 0 may be
  // read, and stored unchanged.
  void EmitScatterAdd(const Stmt& stmt) {
    const ir::DType dtype = kernel_.buffers[stmt.buffer].dtype;
    const bool vector =
        loops_.vector_axis() >= 0 && LaneStride(stmt.index) != 0;
    const IndexedPlace place = IndexedPlaceOf(stmt, vector);
    Value* before = LoadIndexed(place, vector);
    const TypedValue operands[] = {
        {b_.FromMemory(before, dtype), ArithOf(dtype)}, Get(stmt.src[0])};
    Value* sum = EmitScalar(b_, ir::ScalarOp::kAdd, operands, dtype, vector);
    sum = b_.ToMemory(sum, ArithOf(dtype), dtype);
    if (!vector) {
      sum = ir_.CreateSelect(place.inside, sum, before);
      ir_.CreateAlignedStore(sum, place.pointer, place.align);
    } else if (place.per_lane) {
      ir_.CreateMaskedScatter(sum, place.pointer, place.align,
                              AccessMask(place));
    } else {
      ir_.CreateMaskedStore(sum, place.pointer, place.align, AccessMask(place));
    }
  }

  // Stores one run at a time. Pick() gathers its elements from the sources.
  void EmitStoreTile(const Stmt& stmt) {
    const codegen::TileStore& tile = stmt.tile;
    const ir::DType dtype = kernel_.buffers[stmt.buffer].dtype;
    std::vector<Value*> sources;
    for (int reg : tile.sources) {
      const TypedValue source = Get(reg);
      sources.push_back(b_.ToMemory(source.value, source.arith, dtype));
    }
    llvm::Type* element = b_.MemoryType(dtype);
    const llvm::Align align(static_cast<uint64_t>(ir::DTypeSize(dtype)));
    for (size_t at = 0; at < tile.order.size(); at += tile.run) {
      const std::span<const int> lanes(&tile.order[at], tile.run);
      const int64_t place = static_cast<int64_t>(at) / tile.run * tile.stride;
      Value* pointer = ir_.CreateInBoundsGEP(
          element, buffers_[stmt.buffer],
          ir_.CreateNSWAdd(ScalarIndex(stmt.index), I64(place)));
      ir_.CreateAlignedStore(b_.Pick(sources, lanes), pointer, align);
    }
  }

  const Kernel& kernel_;
  const Phase& phase_;
  ValueBuilder b_;
  llvm::IRBuilder<>& ir_;
  llvm::Function* const function_;
  LoopBuilder loops_;
  BasicBlock* entry_ = nullptr;
  int innermost_ = -1;  // axis of the open loop, if it has no inner loops
  std::vector<Value*> buffers_;
  // By register: one slot per value of a tile register.
  std::vector<std::vector<llvm::AllocaInst*>> registers_;
};

}  // namespace

std::string PhaseSymbol(size_t phase) {
  return fmt::format("fusor_p{}", phase);
}

void EmitKernel(const Kernel& kernel, const VectorExtensions& extensions,
                llvm::Module& module) {
  for (size_t k = 0; k < kernel.phases.size(); ++k) {
    PhaseEmitter(kernel, kernel.phases[k], extensions, module, PhaseSymbol(k))
        .Emit();
  }
  std::string problem;
  llvm::raw_string_ostream stream(problem);
  FUSOR_ASSERT(!llvm::verifyModule(module, &stream), "kernel {}: {}",
               kernel.name, problem);
}

}  // namespace fusor::cpu
