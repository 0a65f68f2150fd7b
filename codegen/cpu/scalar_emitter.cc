#include "codegen/cpu/scalar_emitter.h"

#include <llvm/IR/Intrinsics.h>

#include <algorithm>
#include <array>
#include <limits>

#include "ir/support/error.h"

namespace fusor::cpu {
namespace {

using ir::ScalarOp;
using llvm::Value;

// Returns whether the op is defined on floats only; integers use f64.
bool IsTranscendental(ScalarOp op) {
  switch (op) {
    case ScalarOp::kExp:
    case ScalarOp::kLog:
    case ScalarOp::kSqrt:
    case ScalarOp::kRsqrt:
    case ScalarOp::kTanh:
    case ScalarOp::kSin:
    case ScalarOp::kCos:
    case ScalarOp::kErf:
    case ScalarOp::kPow:
      return true;
    default:
      return false;
  }
}

bool IsLogical(ScalarOp op) {
  return op == ScalarOp::kNot || op == ScalarOp::kAnd || op == ScalarOp::kOr;
}

// Emits the op on f64 (`wide`, by libm) or f32 values.
Value* Transcendental(ValueBuilder& b, ScalarOp op, Value* x, Value* y,
                      bool wide) {
  llvm::IRBuilder<>& ir = b.ir();
  const auto by_register = [&](Value* (*emit)(ValueBuilder&, Value*)) {
    return b.ForEachRegister(x, [&](Value* part) { return emit(b, part); });
  };
  switch (op) {
    case ScalarOp::kExp:
      return wide ? EmitLibmCall(b, "exp", {x}) : by_register(EmitExp);
    case ScalarOp::kLog:
      return wide ? EmitLibmCall(b, "log", {x}) : by_register(EmitLog);
    case ScalarOp::kTanh:
      return wide ? EmitLibmCall(b, "tanh", {x}) : by_register(EmitTanh);
    case ScalarOp::kSin:
      return wide ? EmitLibmCall(b, "sin", {x}) : EmitSin(b, x);
    case ScalarOp::kCos:
      return wide ? EmitLibmCall(b, "cos", {x}) : EmitCos(b, x);
    case ScalarOp::kErf:
      return wide ? EmitLibmCall(b, "erf", {x}) : by_register(EmitErf);
    case ScalarOp::kPow:
      return wide ? EmitLibmCall(b, "pow", {x, y}) : EmitPow(b, x, y);
    case ScalarOp::kSqrt:
      return b.Call(llvm::Intrinsic::sqrt, x);
    case ScalarOp::kRsqrt:
      return ir.CreateFDiv(b.Float(x, 1), b.Call(llvm::Intrinsic::sqrt, x));
    default:
      FUSOR_ASSERT(false, "{} is not transcendental", ScalarOpName(op));
  }
}

// Returns x if it is strictly greater than y (or less, for a minimum), else y.
// Returns NaN if either is NaN.
Value* FloatExtremum(ValueBuilder& b, bool maximum, Value* x, Value* y) {
  llvm::IRBuilder<>& ir = b.ir();
  Value* chosen = ir.CreateSelect(
      maximum ? ir.CreateFCmpOGT(x, y) : ir.CreateFCmpOLT(x, y), x, y);
  // If y is NaN, the comparison has already selected it.
  return ir.CreateSelect(ir.CreateFCmpUNO(x, x), x, chosen);
}

// The C function gives the sign of x, and an exact result also in f64.
Value* FloatRemainder(ValueBuilder& b, Value* x, Value* y) {
  llvm::IRBuilder<>& ir = b.ir();
  llvm::Type* f64 = b.Like(ir.getDoubleTy(), x);
  Value* rest =
      EmitLibmCall(b, "fmod", {ir.CreateFPExt(x, f64), ir.CreateFPExt(y, f64)});
  rest = ir.CreateFPTrunc(rest, x->getType());
  Value* zero = b.Float(x, 0);
  Value* signs =
      ir.CreateXor(ir.CreateFCmpOLT(rest, zero), ir.CreateFCmpOLT(y, zero));
  Value* moves = ir.CreateAnd(ir.CreateFCmpONE(rest, zero), signs);
  return ir.CreateSelect(moves, ir.CreateFAdd(rest, y), rest);
}

Value* FloatArithmetic(ValueBuilder& b, ScalarOp op, Value* x, Value* y) {
  llvm::IRBuilder<>& ir = b.ir();
  switch (op) {
    case ScalarOp::kIdentity:
      return x;
    case ScalarOp::kNeg:
      return ir.CreateFNeg(x);
    case ScalarOp::kAbs:
      return b.Call(llvm::Intrinsic::fabs, x);
    case ScalarOp::kFloor:
      return b.Call(llvm::Intrinsic::floor, x);
    case ScalarOp::kRelu:
      // NaN stays; -0 becomes 0.
      return ir.CreateSelect(ir.CreateFCmpOLE(x, b.Float(x, 0)), b.Float(x, 0),
                             x);
    case ScalarOp::kAdd:
      return ir.CreateFAdd(x, y);
    case ScalarOp::kSub:
      return ir.CreateFSub(x, y);
    case ScalarOp::kMul:
      return ir.CreateFMul(x, y);
    case ScalarOp::kDiv:
      return ir.CreateFDiv(x, y);
    case ScalarOp::kMaximum:
    case ScalarOp::kMinimum:
      return FloatExtremum(b, op == ScalarOp::kMaximum, x, y);
    case ScalarOp::kRemainder:
      return FloatRemainder(b, x, y);
    default:
      FUSOR_ASSERT(false, "{} of floats", ScalarOpName(op));
  }
}

// Divides with truncation. Division by zero gives zero and the least integer
// divided by -1 wraps around: neither may trap.
Value* IntegerQuotient(ValueBuilder& b, Value* x, Value* y) {
  llvm::IRBuilder<>& ir = b.ir();
  Value* zero = ir.CreateICmpEQ(y, b.Int(y, 0));
  Value* minus_one = ir.CreateICmpEQ(y, b.Int(y, -1));
  Value* safe = ir.CreateSelect(ir.CreateOr(zero, minus_one), b.Int(y, 1), y);
  Value* quotient = ir.CreateSDiv(x, safe);
  quotient = ir.CreateSelect(minus_one, ir.CreateNeg(x), quotient);
  return ir.CreateSelect(zero, b.Int(x, 0), quotient);
}

// Rounds the quotient down; see IntegerQuotient.
Value* IntegerFloorDivision(ValueBuilder& b, ScalarOp op, Value* x, Value* y) {
  llvm::IRBuilder<>& ir = b.ir();
  Value* quotient = IntegerQuotient(b, x, y);
  Value* rest = ir.CreateSub(x, ir.CreateMul(quotient, y));
  Value* signs = ir.CreateICmpSLT(ir.CreateXor(rest, y), b.Int(x, 0));
  Value* moves = ir.CreateAnd(ir.CreateICmpNE(rest, b.Int(x, 0)), signs);
  Value* result =
      op == ScalarOp::kFloorDiv
          ? ir.CreateSelect(moves, ir.CreateSub(quotient, b.Int(x, 1)),
                            quotient)
          : ir.CreateSelect(moves, ir.CreateAdd(rest, y), rest);
  Value* zero = ir.CreateICmpEQ(y, b.Int(y, 0));
  return ir.CreateSelect(zero, b.Int(x, 0), result);
}

Value* IntegerArithmetic(ValueBuilder& b, ScalarOp op, Value* x, Value* y) {
  llvm::IRBuilder<>& ir = b.ir();
  switch (op) {
    case ScalarOp::kIdentity:
    case ScalarOp::kFloor:
      return x;
    case ScalarOp::kNeg:
      return ir.CreateNeg(x);
    case ScalarOp::kAbs:
      return ir.CreateSelect(ir.CreateICmpSLT(x, b.Int(x, 0)), ir.CreateNeg(x),
                             x);
    case ScalarOp::kRelu:
      return ir.CreateSelect(ir.CreateICmpSLT(x, b.Int(x, 0)), b.Int(x, 0), x);
    case ScalarOp::kAdd:
      return ir.CreateAdd(x, y);
    case ScalarOp::kSub:
      return ir.CreateSub(x, y);
    case ScalarOp::kMul:
      return ir.CreateMul(x, y);
    case ScalarOp::kDiv:
      return IntegerQuotient(b, x, y);
    case ScalarOp::kFloorDiv:
    case ScalarOp::kRemainder:
      return IntegerFloorDivision(b, op, x, y);
    case ScalarOp::kBitwiseAnd:
      return ir.CreateAnd(x, y);
    case ScalarOp::kBitwiseOr:
      return ir.CreateOr(x, y);
    case ScalarOp::kBitwiseXor:
      return ir.CreateXor(x, y);
    case ScalarOp::kMaximum:
      return ir.CreateSelect(ir.CreateICmpSGT(x, y), x, y);
    case ScalarOp::kMinimum:
      return ir.CreateSelect(ir.CreateICmpSLT(x, y), x, y);
    default:
      FUSOR_ASSERT(false, "{} of integers", ScalarOpName(op));
  }
}

Value* Compare(ValueBuilder& b, ScalarOp op, Value* x, Value* y, bool floats) {
  using Predicate = llvm::CmpInst::Predicate;
  struct Row {
    ScalarOp op;
    Predicate of_floats, of_integers;
  };
  static constexpr Row kRows[] = {
      {ScalarOp::kEq, Predicate::FCMP_OEQ, Predicate::ICMP_EQ},
      {ScalarOp::kNe, Predicate::FCMP_UNE, Predicate::ICMP_NE},
      {ScalarOp::kLt, Predicate::FCMP_OLT, Predicate::ICMP_SLT},
      {ScalarOp::kLe, Predicate::FCMP_OLE, Predicate::ICMP_SLE},
      {ScalarOp::kGt, Predicate::FCMP_OGT, Predicate::ICMP_SGT},
      {ScalarOp::kGe, Predicate::FCMP_OGE, Predicate::ICMP_SGE},
  };
  const Row* row = std::find_if(std::begin(kRows), std::end(kRows),
                                [op](const Row& r) { return r.op == op; });
  FUSOR_ASSERT(row != std::end(kRows), "{} is not a comparison",
               ScalarOpName(op));
  return floats ? b.ir().CreateFCmp(row->of_floats, x, y)
                : b.ir().CreateICmp(row->of_integers, x, y);
}

Value* Logical(ValueBuilder& b, ScalarOp op, Value* x, Value* y) {
  llvm::IRBuilder<>& ir = b.ir();
  if (op == ScalarOp::kNot) return ir.CreateNot(x);
  return op == ScalarOp::kAnd ? ir.CreateAnd(x, y) : ir.CreateOr(x, y);
}

// Returns |x| < infinity, which is false for infinities and NaN.
Value* IsFinite(ValueBuilder& b, Value* x) {
  const double infinity = std::numeric_limits<double>::infinity();
  return b.ir().CreateFCmpOLT(b.Call(llvm::Intrinsic::fabs, x),
                              b.Float(x, infinity));
}

class ScalarEmitter {
 public:
  ScalarEmitter(ValueBuilder& b, std::span<const TypedValue> operands,
                ir::DType dtype, bool vector)
      : b_(b),
        operands_(operands),
        dtype_(dtype),
        result_(ArithOf(dtype)),
        vector_(vector) {}

  Value* Emit(ScalarOp op) {
    if (IsLogical(op)) {
      return ToResult(
          Logical(b_, op, Operand(0, Arith::kBool), Operand(1, Arith::kBool)),
          Arith::kBool);
    }
    if (op == ScalarOp::kSelect) {
      return b_.ir().CreateSelect(Operand(0, Arith::kBool), Operand(1, result_),
                                  Operand(2, result_));
    }
    if (op == ScalarOp::kIdentity) {
      return ToResult(Operand(0, operands_[0].arith), operands_[0].arith);
    }
    if (IsComparison(op)) {
      const Arith arith = Widest(Arith::kI32);
      return ToResult(
          Compare(b_, op, Operand(0, arith), Operand(1, arith), IsFloat(arith)),
          Arith::kBool);
    }
    if (op == ScalarOp::kIsFinite) return EmitIsFinite();
    Arith arith = std::max(result_, Widest(Arith::kI32));
    if (IsTranscendental(op)) {
      if (!IsFloat(arith)) arith = Arith::kF64;
      return ToResult(Transcendental(b_, op, Operand(0, arith),
                                     Operand(1, arith), arith == Arith::kF64),
                      arith);
    }
    Value* x = Operand(0, arith);
    Value* y = Operand(1, arith);
    return ToResult(IsFloat(arith) ? FloatArithmetic(b_, op, x, y)
                                   : IntegerArithmetic(b_, op, x, y),
                    arith);
  }

 private:
  Value* EmitIsFinite() {
    const Arith arith = operands_[0].arith;
    if (IsFloat(arith)) {
      return ToResult(IsFinite(b_, Operand(0, arith)), Arith::kBool);
    }
    return b_.Constant(dtype_, vector_, 1);
  }

  // Returns operand i converted to `arith`; null if there is none.
  Value* Operand(size_t i, Arith arith) {
    if (i >= operands_.size()) return nullptr;
    Value* value = b_.Convert(operands_[i].value, operands_[i].arith, arith);
    return vector_ ? b_.Splat(value) : value;
  }

  Arith Widest(Arith least) const {
    for (const TypedValue& operand : operands_) {
      least = std::max(least, operand.arith);
    }
    return least;
  }

  Value* ToResult(Value* value, Arith arith) {
    return b_.ConvertFor(value, arith, dtype_);
  }

  ValueBuilder& b_;
  std::span<const TypedValue> operands_;
  ir::DType dtype_;
  Arith result_;
  bool vector_;
};

// Each word of the counter or key is stored in the lower half of an i64.
using Words = std::array<Value*, 4>;

struct Product {
  Value* high;
  Value* low;
};

Product Multiply(ValueBuilder& b, Value* word, int64_t constant) {
  llvm::IRBuilder<>& ir = b.ir();
  Value* product = ir.CreateMul(word, b.Int(word, constant));
  return {ir.CreateLShr(product, b.Int(product, 32)),
          ir.CreateAnd(product, b.Int(product, 0xffffffff))};
}

Words Philox(ValueBuilder& b, Words counter, Value* k0, Value* k1) {
  llvm::IRBuilder<>& ir = b.ir();
  const auto bump = [&](Value* key, int64_t weyl) {
    return ir.CreateAnd(ir.CreateAdd(key, b.Int(key, weyl)),
                        b.Int(key, 0xffffffff));
  };
  for (int round = 0; round < 10; ++round) {
    const Product p0 = Multiply(b, counter[0], 0xD2511F53);
    const Product p1 = Multiply(b, counter[2], 0xCD9E8D57);
    counter = {ir.CreateXor(ir.CreateXor(p1.high, counter[1]), k0), p1.low,
               ir.CreateXor(ir.CreateXor(p0.high, counter[3]), k1), p0.low};
    k0 = bump(k0, 0x9E3779B9);
    k1 = bump(k1, 0xBB67AE85);
  }
  return counter;
}

}  // namespace

Value* EmitScalar(ValueBuilder& b, ScalarOp op,
                  std::span<const TypedValue> operands, ir::DType dtype,
                  bool vector) {
  return ScalarEmitter(b, operands, dtype, vector).Emit(op);
}

Value* EmitUniform(ValueBuilder& b, Value* key, Value* step, int64_t site,
                   int64_t rank, Value* index) {
  llvm::IRBuilder<>& ir = b.ir();
  const auto low_word = [&](Value* v) {
    return ir.CreateAnd(v, b.Int(v, 0xffffffff));
  };
  const auto spread = [&](Value* v) {
    return index->getType()->isVectorTy() ? b.Splat(v) : v;
  };
  // Four consecutive elements share one Philox block.
  const Words words = Philox(
      b,
      {low_word(ir.CreateLShr(index, b.Int(index, 2))), spread(low_word(step)),
       b.Int(index, site & 0xffffffff), b.Int(index, rank & 0xffffffff)},
      spread(low_word(key)), spread(ir.CreateLShr(key, b.Int(key, 32))));
  Value* which = ir.CreateAnd(index, b.Int(index, 3));
  Value* bits = words[3];
  for (int64_t i = 2; i >= 0; --i) {
    bits = ir.CreateSelect(ir.CreateICmpEQ(which, b.Int(which, i)), words[i],
                           bits);
  }
  Value* mantissa = ir.CreateTrunc(ir.CreateLShr(bits, b.Int(bits, 8)),
                                   b.Like(ir.getInt32Ty(), bits));
  Value* value = ir.CreateSIToFP(mantissa, b.Like(ir.getFloatTy(), mantissa));
  return ir.CreateFMul(value, b.Float(value, 0x1p-24));
}

}  // namespace fusor::cpu
