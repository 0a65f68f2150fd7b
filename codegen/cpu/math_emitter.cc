#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/Module.h>

#include <cmath>
#include <limits>
#include <vector>

#include "codegen/cpu/scalar_emitter.h"

namespace fusor::cpu {
namespace {

using llvm::Value;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Clears fast-math flags such as contraction while it lives.
class ExactMath {
 public:
  explicit ExactMath(ValueBuilder& b) : guard_(b.ir()) {
    b.ir().clearFastMathFlags();
  }

 private:
  llvm::IRBuilderBase::FastMathFlagGuard guard_;
};

// Returns coefficients[0] + x * (coefficients[1] + x * ...).
Value* Polynomial(ValueBuilder& b, Value* x,
                  std::initializer_list<double> coefficients) {
  const double* c = std::data(coefficients);
  size_t i = coefficients.size() - 1;
  Value* sum = b.Float(x, c[i]);
  while (i > 0) sum = b.Fma(sum, x, b.Float(x, c[--i]));
  return sum;
}

Value* Abs(ValueBuilder& b, Value* x) {
  return b.Call(llvm::Intrinsic::fabs, x);
}

Value* CopySign(ValueBuilder& b, Value* magnitude, Value* sign) {
  return b.ir().CreateBinaryIntrinsic(llvm::Intrinsic::copysign, magnitude,
                                      sign);
}

// Clamps x to [low, high]. NaN stays NaN.
Value* Clamp(ValueBuilder& b, Value* x, double low, double high) {
  llvm::IRBuilder<>& ir = b.ir();
  x = ir.CreateSelect(ir.CreateFCmpOGT(x, b.Float(x, high)), b.Float(x, high),
                      x);
  return ir.CreateSelect(ir.CreateFCmpOLT(x, b.Float(x, low)), b.Float(x, low),
                         x);
}

Value* ToInt32(ValueBuilder& b, Value* x) {
  llvm::Type* i32 = b.Like(b.ir().getInt32Ty(), x);
  return b.ir().CreateFreeze(b.ir().CreateFPToSI(x, i32));
}

// Returns 2^n as f32 for an i32 n within f32's normal exponents.
Value* PowerOfTwo(ValueBuilder& b, Value* n) {
  Value* bits =
      b.ir().CreateShl(b.ir().CreateAdd(n, b.Int(n, 127)), b.Int(n, 23));
  return b.ir().CreateBitCast(bits, b.Like(b.ir().getFloatTy(), n));
}

// Returns y * 2^n, rounded once, of an f32 y in [1/2, 2] and an integral f32 n
// in [-152, 128].
Value* ScaleByPowerOfTwo(ValueBuilder& b, Value* y, Value* n) {
  Value* scaled = b.Scalef(y, n);
  if (scaled != nullptr) return scaled;
  // In two factors, so that n = 128 and subnormal results are correct.
  llvm::IRBuilder<>& ir = b.ir();
  Value* exponent = ToInt32(b, n);
  Value* half = ir.CreateAShr(exponent, b.Int(exponent, 1));
  y = ir.CreateFMul(y, PowerOfTwo(b, half));
  return ir.CreateFMul(y, PowerOfTwo(b, ir.CreateSub(exponent, half)));
}

// x = 2^e * m with m in [sqrt(1/2), sqrt(2)) and e an i32, for normal x.
struct Split {
  Value* exponent;
  Value* mantissa;
};

// Subtracting the bits of sqrt(1/2) makes the exponent field increment at
// sqrt(1/2) instead of 1.
Split SplitFloat(ValueBuilder& b, Value* x) {
  llvm::IRBuilder<>& ir = b.ir();
  constexpr int64_t kSqrtHalf = 0x3f3504f3;
  Value* bits = ir.CreateBitCast(x, b.Like(ir.getInt32Ty(), x));
  Value* moved = ir.CreateSub(bits, b.Int(bits, kSqrtHalf));
  Value* exponent = ir.CreateAShr(moved, b.Int(bits, 23));
  Value* mantissa = ir.CreateSub(bits, ir.CreateShl(exponent, b.Int(bits, 23)));
  return {exponent, ir.CreateBitCast(mantissa, x->getType())};
}

// Computes log2(x) of a positive normal f32 x in f64, to about 1e-15 relative:
// log2(m) = 2/ln 2 * atanh(s) with s = (m-1)/(m+1), |s| < 0.172.
Value* Log2InDouble(ValueBuilder& b, Value* x) {
  llvm::IRBuilder<>& ir = b.ir();
  const Split split = SplitFloat(b, x);
  llvm::Type* f64 = b.Like(ir.getDoubleTy(), x);
  Value* m = ir.CreateFPExt(split.mantissa, f64);
  Value* s = ir.CreateFDiv(ir.CreateFSub(m, b.Float(m, 1)),
                           ir.CreateFAdd(m, b.Float(m, 1)));
  Value* series = Polynomial(b, ir.CreateFMul(s, s),
                             {1.0, 1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11,
                              1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19});
  Value* log2_m =
      ir.CreateFMul(ir.CreateFMul(s, b.Float(s, 2 / M_LN2)), series);
  return ir.CreateFAdd(ir.CreateSIToFP(split.exponent, f64), log2_m);
}

// Returns 2^z of an f64 z as f32. Before it is rounded to nearest, the result
// has a relative error of about 1e-11.
Value* Exp2ToFloat(ValueBuilder& b, Value* z) {
  llvm::IRBuilder<>& ir = b.ir();
  z = Clamp(b, z, -200, 200);  // beyond all floats, within all doubles
  Value* n = b.Call(llvm::Intrinsic::roundeven, z);
  Value* r = ir.CreateFMul(ir.CreateFSub(z, n), b.Float(z, M_LN2));
  Value* series = Polynomial(
      b, r,
      {1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040,
       1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800});
  llvm::Type* i64 = b.Like(ir.getInt64Ty(), z);
  Value* exponent = ir.CreateSExt(ToInt32(b, n), i64);
  Value* bits = ir.CreateShl(ir.CreateAdd(exponent, b.Int(exponent, 1023)),
                             b.Int(exponent, 52));
  Value* scaled = ir.CreateFMul(series, ir.CreateBitCast(bits, z->getType()));
  return ir.CreateFPTrunc(scaled, b.Like(ir.getFloatTy(), z));
}

// Returns e^x for x in [-105, 89]; unspecified for other x. Cephes' expf: x =
// n ln 2 + r with |r| <= ln 2 / 2, and a polynomial in r.
Value* ExpInRange(ValueBuilder& b, Value* x) {
  llvm::IRBuilder<>& ir = b.ir();
  Value* n =
      b.Call(llvm::Intrinsic::roundeven, ir.CreateFMul(x, b.Float(x, M_LOG2E)));
  constexpr double kLn2High = 0x1.62e43p-1;  // ln 2 as f32
  Value* r = b.Fma(n, b.Float(n, -kLn2High), x);
  r = b.Fma(n, b.Float(n, kLn2High - M_LN2), r);
  Value* series =
      Polynomial(b, r,
                 {5.0000001201e-1, 1.6666665459e-1, 4.1665795894e-2,
                  8.3334519073e-3, 1.3981999507e-3, 1.9875691500e-4});
  Value* y =
      b.Fma(ir.CreateFMul(r, r), series, ir.CreateFAdd(r, b.Float(r, 1)));
  return ScaleByPowerOfTwo(b, y, n);
}

}  // namespace

Value* EmitExp(ValueBuilder& b, Value* x) {
  const ExactMath exact(b);
  return ExpInRange(b, Clamp(b, x, -105, 89));
}

// Cephes' logf: x = 2^e m, a polynomial in m - 1.
Value* EmitLog(ValueBuilder& b, Value* x) {
  const ExactMath exact(b);
  llvm::IRBuilder<>& ir = b.ir();
  const Split split = SplitFloat(b, x);
  Value* f = ir.CreateFSub(split.mantissa, b.Float(x, 1));
  Value* e = ir.CreateSIToFP(split.exponent, x->getType());
  Value* series =
      Polynomial(b, f,
                 {3.3333331174e-1, -2.4999993993e-1, 2.0000714765e-1,
                  -1.6668057665e-1, 1.4249322787e-1, -1.2420140846e-1,
                  1.1676998740e-1, -1.1514610310e-1, 7.0376836292e-2});
  Value* f2 = ir.CreateFMul(f, f);
  Value* y = ir.CreateFMul(ir.CreateFMul(f2, f), series);
  y = b.Fma(e, b.Float(e, -2.12194440e-4), y);
  y = b.Fma(f2, b.Float(f, -0.5), y);
  y = b.Fma(e, b.Float(e, 0.693359375), ir.CreateFAdd(f, y));
  // Special cases: zero, infinity, negative numbers and NaN.
  Value* tiny = ir.CreateFCmpOLT(x, b.Float(x, 0x1p-126));
  y = ir.CreateSelect(tiny, b.Float(x, -kInf), y);
  y = ir.CreateSelect(ir.CreateFCmpOEQ(x, b.Float(x, kInf)), x, y);
  Value* bad = ir.CreateFCmpULT(x, b.Float(x, 0));
  return ir.CreateSelect(bad, b.Float(x, kNan), y);
}

// Cephes' tanhf: an odd polynomial near zero, else 1 - 2 / (e^2|x| + 1).
Value* EmitTanh(ValueBuilder& b, Value* x) {
  const ExactMath exact(b);
  llvm::IRBuilder<>& ir = b.ir();
  Value* a = Abs(b, x);
  Value* x2 = ir.CreateFMul(x, x);
  Value* series =
      Polynomial(b, x2,
                 {-3.33332819422e-1, 1.33314422036e-1, -5.37397155531e-2,
                  2.06390887954e-2, -5.70498872745e-3});
  Value* small = b.Fma(ir.CreateFMul(series, x2), x, x);
  Value* e = EmitExp(b, ir.CreateFAdd(a, a));
  Value* large = ir.CreateFSub(
      b.Float(x, 1),
      ir.CreateFDiv(b.Float(x, 2), ir.CreateFAdd(e, b.Float(x, 1))));
  Value* is_small = ir.CreateFCmpOLT(a, b.Float(x, 0.625));
  return CopySign(b, ir.CreateSelect(is_small, small, large), x);
}

namespace {

// The f32 sine or cosine of an f32 x, |x| <= 2^30: x = n pi/2 + r in f64 with
// |r| <= pi/4 (Cody and Waite), then Cephes' sinf or cosf of r.
Value* PeriodicPolynomial(ValueBuilder& b, Value* x, bool cosine) {
  llvm::IRBuilder<>& ir = b.ir();
  Value* wide = ir.CreateFPExt(x, b.Like(ir.getDoubleTy(), x));
  Value* n = b.Call(llvm::Intrinsic::roundeven,
                    ir.CreateFMul(wide, b.Float(wide, M_2_PI)));
  constexpr double kRest = 6.123233995736766e-17;  // of pi/2 beyond M_PI_2
  Value* rest = b.Fma(n, b.Float(n, -M_PI_2), wide);
  rest = b.Fma(n, b.Float(n, -kRest), rest);
  Value* r = ir.CreateFPTrunc(rest, x->getType());
  Value* r2 = ir.CreateFMul(r, r);
  Value* series =
      Polynomial(b, r2, {-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4});
  Value* sin = b.Fma(ir.CreateFMul(series, r2), r, r);
  series = Polynomial(
      b, r2,
      {4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5});
  Value* cos = b.Fma(ir.CreateFMul(r2, r2), series,
                     b.Fma(r2, b.Float(r2, -0.5), b.Float(r2, 1)));
  Value* quadrant = ToInt32(b, n);
  if (cosine) quadrant = ir.CreateAdd(quadrant, b.Int(quadrant, 1));
  const auto has_bit = [&](int64_t bit) {
    return ir.CreateICmpNE(ir.CreateAnd(quadrant, b.Int(quadrant, bit)),
                           b.Int(quadrant, 0));
  };
  Value* y = ir.CreateSelect(has_bit(1), cos, sin);
  return ir.CreateSelect(has_bit(2), ir.CreateFNeg(y), y);
}

// Lanes with larger numbers get libm's result. The other lanes do not, so that
// no element's bits depend on its neighbours.
Value* EmitPeriodic(ValueBuilder& b, Value* x, bool cosine) {
  const ExactMath exact(b);
  llvm::IRBuilder<>& ir = b.ir();
  Value* computed = PeriodicPolynomial(b, x, cosine);
  Value* large = ir.CreateFCmpOGT(Abs(b, x), b.Float(x, 0x1p30));
  Value* any =
      large->getType()->isVectorTy() ? ir.CreateOrReduce(large) : large;
  llvm::Function* function = ir.GetInsertBlock()->getParent();
  const auto block = [&](const char* name) {
    return llvm::BasicBlock::Create(ir.getContext(), name, function);
  };
  llvm::BasicBlock* before = ir.GetInsertBlock();
  llvm::BasicBlock* libm = block("large");
  llvm::BasicBlock* after = block("periodic");
  ir.CreateCondBr(any, libm, after);
  ir.SetInsertPoint(libm);
  Value* wide = ir.CreateFPExt(x, b.Like(ir.getDoubleTy(), x));
  Value* called = ir.CreateFPTrunc(
      EmitLibmCall(b, cosine ? "cos" : "sin", {wide}), x->getType());
  Value* mixed = ir.CreateSelect(large, called, computed);
  ir.CreateBr(after);
  libm = ir.GetInsertBlock();
  ir.SetInsertPoint(after);
  llvm::PHINode* y = ir.CreatePHI(x->getType(), 2);
  y->addIncoming(mixed, libm);
  y->addIncoming(computed, before);
  return y;
}

}  // namespace

Value* EmitSin(ValueBuilder& b, Value* x) { return EmitPeriodic(b, x, false); }
Value* EmitCos(ValueBuilder& b, Value* x) { return EmitPeriodic(b, x, true); }

// An odd polynomial near zero, else 1 - exp of a polynomial fitted to
// log(1 - erf), after N. Juffa's erff.
Value* EmitErf(ValueBuilder& b, Value* x) {
  const ExactMath exact(b);
  llvm::IRBuilder<>& ir = b.ir();
  Value* a = Abs(b, x);
  Value* x2 = ir.CreateFMul(x, x);
  Value* r =
      Polynomial(b, a,
                 {-1.28717512e-1, -6.34846687e-1, -1.06777877e-1, 2.42546219e-2,
                  -3.88396438e-3, 3.83197126e-4, -1.72853470e-5});
  r = b.Fma(r, a, ir.CreateFNeg(a));
  // Where it is used, r is between -17 and 0.
  Value* large = ir.CreateFSub(b.Float(x, 1), ExpInRange(b, r));
  Value* series = Polynomial(b, x2,
                             {1.28379166e-1, -3.76125336e-1, 1.12819925e-1,
                              -2.67681349e-2, 4.99119423e-3, -5.96761703e-4});
  Value* small = b.Fma(series, x, x);
  Value* is_large = ir.CreateFCmpOGT(a, b.Float(x, 0.927734375));
  Value* y = ir.CreateSelect(is_large, CopySign(b, large, x), small);
  // The polynomial is not usable for large |x|.
  Value* is_one = ir.CreateFCmpOGT(a, b.Float(x, 4));
  return ir.CreateSelect(is_one, CopySign(b, b.Float(x, 1), x), y);
}

// Computes 2^(y log2 |x|) in f64, then applies the special cases of C's pow.
Value* EmitPow(ValueBuilder& b, Value* x, Value* y) {
  const ExactMath exact(b);
  llvm::IRBuilder<>& ir = b.ir();
  llvm::Type* f64 = b.Like(ir.getDoubleTy(), x);
  const auto is = [&](Value* v, double constant) {
    return ir.CreateFCmpOEQ(v, b.Float(v, constant));
  };
  Value* a = Abs(b, x);
  Value* exponent = ir.CreateFPExt(y, f64);
  // The logarithms of infinite and zero bases are infinite with the right sign.
  // An exponent of zero is handled below.
  Value* log2 = Log2InDouble(b, a);
  Value* tiny = ir.CreateFCmpOLT(a, b.Float(a, 0x1p-126));
  log2 = ir.CreateSelect(tiny, b.Float(log2, -kInf), log2);
  log2 = ir.CreateSelect(is(a, kInf), b.Float(log2, kInf), log2);
  Value* power = Exp2ToFloat(b, ir.CreateFMul(exponent, log2));
  Value* floor = b.Call(llvm::Intrinsic::floor, y);
  Value* half = ir.CreateFMul(y, b.Float(y, 0.5));
  Value* is_integer = ir.CreateFCmpOEQ(floor, y);
  Value* is_odd = ir.CreateAnd(
      is_integer, ir.CreateFCmpONE(b.Call(llvm::Intrinsic::floor, half), half));
  power = ir.CreateSelect(is_odd, CopySign(b, power, x), power);
  Value* negative = ir.CreateAnd(ir.CreateFCmpOLT(x, b.Float(x, 0)),
                                 ir.CreateFCmpONE(x, b.Float(x, -kInf)));
  Value* bad = ir.CreateAnd(negative, ir.CreateNot(is_integer));
  power = ir.CreateSelect(bad, b.Float(x, kNan), power);
  // |x| = 1 and infinite y gave 0 * inf above.
  Value* unit = ir.CreateAnd(is(a, 1), is(Abs(b, y), kInf));
  power = ir.CreateSelect(unit, b.Float(x, 1), power);
  Value* nan = ir.CreateFCmpUNO(x, y);
  power = ir.CreateSelect(nan, b.Float(x, kNan), power);
  Value* one = ir.CreateOr(is(y, 0), is(x, 1));
  return ir.CreateSelect(one, b.Float(x, 1), power);
}

Value* EmitLibmCall(ValueBuilder& b, const char* name,
                    std::initializer_list<Value*> operands) {
  llvm::IRBuilder<>& ir = b.ir();
  llvm::Type* f64 = ir.getDoubleTy();
  const std::vector<llvm::Type*> types(operands.size(), f64);
  llvm::Module* module = ir.GetInsertBlock()->getModule();
  const llvm::FunctionCallee callee = module->getOrInsertFunction(
      name, llvm::FunctionType::get(f64, types, false));
  const auto call = [&](auto lane_of) {
    std::vector<Value*> args;
    for (Value* operand : operands) args.push_back(lane_of(operand));
    return ir.CreateCall(callee, args);
  };
  llvm::Type* type = (*operands.begin())->getType();
  if (!type->isVectorTy()) return call([](Value* v) { return v; });
  Value* result = llvm::PoisonValue::get(type);
  for (int lane = 0; lane < b.lanes(); ++lane) {
    Value* y = call([&](Value* v) { return ir.CreateExtractElement(v, lane); });
    result = ir.CreateInsertElement(result, y, lane);
  }
  return result;
}

}  // namespace fusor::cpu
