#include "codegen/cpu/value_builder.h"

#include <immintrin.h>
#include <llvm/Analysis/VectorUtils.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsX86.h>

#include <cmath>
#include <limits>
#include <vector>

#include "ir/support/error.h"

namespace fusor::cpu {

using ir::DType;
using llvm::Value;

ValueBuilder::ValueBuilder(llvm::LLVMContext& context, int lanes,
                           const VectorExtensions& extensions)
    : builder_(context), lanes_(lanes), extensions_(extensions) {}

llvm::Type* ValueBuilder::TypeOf(Arith arith, bool vector) {
  llvm::Type* type = nullptr;
  switch (arith) {
    case Arith::kBool:
      type = builder_.getInt1Ty();
      break;
    case Arith::kI32:
      type = builder_.getInt32Ty();
      break;
    case Arith::kI64:
      type = builder_.getInt64Ty();
      break;
    case Arith::kF32:
      type = builder_.getFloatTy();
      break;
    case Arith::kF64:
      type = builder_.getDoubleTy();
      break;
  }
  return vector ? llvm::FixedVectorType::get(type, lanes_) : type;
}

llvm::Type* ValueBuilder::MemoryType(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return builder_.getDoubleTy();
    case DType::kF32:
      return builder_.getFloatTy();
    case DType::kF16:
      return builder_.getHalfTy();
    case DType::kBF16:
      return builder_.getInt16Ty();
    case DType::kI32:
      return builder_.getInt32Ty();
    case DType::kI64:
      return builder_.getInt64Ty();
    case DType::kU8:
    case DType::kBool:
      return builder_.getInt8Ty();
  }
  FUSOR_ASSERT(false, "dtype {}", static_cast<int>(dtype));
}

llvm::Type* ValueBuilder::Like(llvm::Type* type, Value* like) {
  const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(like->getType());
  return vector == nullptr
             ? type
             : llvm::FixedVectorType::get(type, vector->getNumElements());
}

Value* ValueBuilder::Splat(Value* value) {
  return value->getType()->isVectorTy()
             ? value
             : builder_.CreateVectorSplat(lanes_, value);
}

Value* ValueBuilder::Constant(DType dtype, bool vector, double value) {
  const Arith arith = ArithOf(dtype);
  llvm::Type* type = TypeOf(arith, vector);
  if (arith == Arith::kF32) {
    return llvm::ConstantFP::get(type, static_cast<float>(value));
  }
  if (arith == Arith::kF64) return llvm::ConstantFP::get(type, value);
  int64_t low = std::numeric_limits<int64_t>::min();
  int64_t high = std::numeric_limits<int64_t>::max();
  if (dtype == DType::kI32) {
    low = std::numeric_limits<int32_t>::min();
    high = std::numeric_limits<int32_t>::max();
  } else if (dtype == DType::kU8 || dtype == DType::kBool) {
    low = 0;
    high = dtype == DType::kBool ? 1 : 255;
  }
  int64_t integer = 0;
  if (std::isinf(value)) {
    integer = value < 0 ? low : high;
  } else if (dtype == DType::kBool) {
    integer = value != 0;
  } else if (!std::isnan(value)) {
    integer = static_cast<int64_t>(value);
  }
  return llvm::ConstantInt::get(type, static_cast<uint64_t>(integer), true);
}

Value* ValueBuilder::Float(Value* like, double value) {
  return llvm::ConstantFP::get(like->getType(), value);
}

Value* ValueBuilder::Int(Value* like, int64_t value) {
  return llvm::ConstantInt::get(like->getType(), static_cast<uint64_t>(value),
                                true);
}

Value* ValueBuilder::Convert(Value* value, Arith from, Arith to) {
  if (from == to) return value;
  llvm::Type* type = Like(TypeOf(to, false), value);
  if (to == Arith::kBool) {
    // NaN is not zero.
    return IsFloat(from) ? builder_.CreateFCmpUNE(value, Float(value, 0))
                         : builder_.CreateICmpNE(value, Int(value, 0));
  }
  if (from == Arith::kBool) {
    return IsFloat(to) ? builder_.CreateUIToFP(value, type)
                       : builder_.CreateZExt(value, type);
  }
  if (IsFloat(from) && IsFloat(to)) {
    return to == Arith::kF64 ? builder_.CreateFPExt(value, type)
                             : builder_.CreateFPTrunc(value, type);
  }
  if (IsFloat(to)) return builder_.CreateSIToFP(value, type);
  if (IsFloat(from)) {
    // The result of values out of range is unspecified, but must not be poison.
    return builder_.CreateFreeze(builder_.CreateFPToSI(value, type));
  }
  return builder_.CreateSExtOrTrunc(value, type);
}

Value* ValueBuilder::Call(llvm::Intrinsic::ID id, Value* value) {
  return builder_.CreateUnaryIntrinsic(id, value);
}

Value* ValueBuilder::Fma(Value* a, Value* b, Value* c) {
  return builder_.CreateIntrinsic(a->getType(), llvm::Intrinsic::fma,
                                  {a, b, c});
}

Value* ValueBuilder::ForEachRegister(
    Value* x, llvm::function_ref<Value*(Value*)> function) {
  const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(x->getType());
  const int lanes = extensions_.avx512 ? 16 : 8;
  const int all =
      type == nullptr ? 1 : static_cast<int>(type->getNumElements());
  if (all <= lanes) return function(x);
  std::vector<Value*> results;
  for (int begin = 0; begin < all; begin += lanes) {
    results.push_back(function(builder_.CreateShuffleVector(
        x, llvm::createSequentialMask(begin, lanes, 0))));
  }
  return llvm::concatenateVectors(builder_, results);
}

Value* ValueBuilder::Scalef(Value* x, Value* n) {
  const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(x->getType());
  if (!extensions_.avx512 || type == nullptr) return nullptr;
  const auto all = [&](int lanes) {
    return llvm::Constant::getAllOnesValue(builder_.getIntNTy(lanes));
  };
  switch (type->getNumElements()) {
    case 8:
      return builder_.CreateIntrinsic(
          llvm::Intrinsic::x86_avx512_mask_scalef_ps_256, {},
          {x, n, x, all(8)});
    case 16:
      return builder_.CreateIntrinsic(
          llvm::Intrinsic::x86_avx512_mask_scalef_ps_512, {},
          {x, n, x, all(16), builder_.getInt32(_MM_FROUND_CUR_DIRECTION)});
    default:
      return nullptr;
  }
}

// Rounds f32 to bf16, to nearest even; NaN stays NaN.
Value* ValueBuilder::FloatToBFloat16(Value* value) {
  llvm::Type* i16 = Like(builder_.getInt16Ty(), value);
  // The vector instruction needs a whole register of lanes.
  if (extensions_.avx512_bf16 && value->getType()->isVectorTy() &&
      lanes_ >= 8) {
    llvm::Type* bf16 = Like(builder_.getBFloatTy(), value);
    return builder_.CreateBitCast(builder_.CreateFPTrunc(value, bf16), i16);
  }
  llvm::Type* i32 = Like(builder_.getInt32Ty(), value);
  Value* bits = builder_.CreateBitCast(value, i32);
  Value* upper = builder_.CreateLShr(bits, Int(bits, 16));
  Value* odd = builder_.CreateAnd(upper, Int(bits, 1));
  Value* rounded = builder_.CreateLShr(
      builder_.CreateAdd(bits, builder_.CreateAdd(odd, Int(bits, 0x7fff))),
      Int(bits, 16));
  Value* quiet = builder_.CreateOr(upper, Int(bits, 0x40));
  Value* is_nan = builder_.CreateFCmpUNO(value, value);
  return builder_.CreateTrunc(builder_.CreateSelect(is_nan, quiet, rounded),
                              i16);
}

Value* ValueBuilder::Pick(std::span<Value* const> sources,
                          std::span<const int> lanes) {
  const auto size = static_cast<int>(lanes.size());
  Value* picked = nullptr;
  // One shuffle instruction reads two sources.
  for (size_t s = 0; s < sources.size(); s += 2) {
    const int first = static_cast<int>(s) * lanes_;
    std::vector<int> from(lanes.size(), llvm::PoisonMaskElem);
    std::vector<int> merged(lanes.size());
    bool any = false;
    for (int i = 0; i < size; ++i) {
      const bool here = lanes[i] >= first && lanes[i] < first + 2 * lanes_;
      if (here) from[i] = lanes[i] - first;
      merged[i] = here ? size + i : i;
      any |= here;
    }
    if (!any) continue;
    Value* second = s + 1 < sources.size() ? sources[s + 1] : sources[s];
    Value* part = builder_.CreateShuffleVector(sources[s], second, from);
    picked = picked == nullptr
                 ? part
                 : builder_.CreateShuffleVector(picked, part, merged);
  }
  return picked;
}

// Rounds f64 to f32 to odd. A later rounding to a 16-bit float then gives the
// same result as a single rounding.
Value* ValueBuilder::NarrowToOdd(Value* value) {
  llvm::Type* f32 = Like(builder_.getFloatTy(), value);
  llvm::Type* i32 = Like(builder_.getInt32Ty(), value);
  Value* nearest = builder_.CreateFPTrunc(value, f32);
  Value* back = builder_.CreateFPExt(nearest, value->getType());
  Value* bits = builder_.CreateBitCast(nearest, i32);
  Value* away = builder_.CreateFCmpOGT(Call(llvm::Intrinsic::fabs, back),
                                       Call(llvm::Intrinsic::fabs, value));
  Value* toward_zero = builder_.CreateSub(bits, builder_.CreateZExt(away, i32));
  Value* odd = builder_.CreateOr(toward_zero, Int(bits, 1));
  Value* inexact = builder_.CreateFCmpONE(back, value);
  return builder_.CreateBitCast(builder_.CreateSelect(inexact, odd, bits), f32);
}

Value* ValueBuilder::ConvertFor(Value* value, Arith from, DType dtype) {
  const bool narrow = dtype == DType::kF16 || dtype == DType::kBF16;
  return narrow && from == Arith::kF64 ? NarrowToOdd(value)
                                       : Convert(value, from, ArithOf(dtype));
}

Value* ValueBuilder::Round(Value* value, DType dtype) {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
    case DType::kU8:
      return FromMemory(ToMemory(value, ArithOf(dtype), dtype), dtype);
    default:
      return value;
  }
}

Value* ValueBuilder::FromMemory(Value* value, DType dtype) {
  llvm::Type* type = Like(TypeOf(ArithOf(dtype), false), value);
  switch (dtype) {
    case DType::kF16:
      return builder_.CreateFPExt(value, type);
    case DType::kBF16: {
      llvm::Type* i32 = Like(builder_.getInt32Ty(), value);
      Value* bits = builder_.CreateZExt(value, i32);
      return builder_.CreateBitCast(builder_.CreateShl(bits, Int(bits, 16)),
                                    type);
    }
    case DType::kU8:
      return builder_.CreateZExt(value, type);
    case DType::kBool:
      return builder_.CreateICmpNE(value, Int(value, 0));
    default:
      return value;
  }
}

Value* ValueBuilder::ToMemory(Value* value, Arith from, DType dtype) {
  llvm::Type* type = Like(MemoryType(dtype), value);
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16: {
      Value* narrow = ConvertFor(value, from, dtype);
      return dtype == DType::kBF16 ? FloatToBFloat16(narrow)
                                   : builder_.CreateFPTrunc(narrow, type);
    }
    case DType::kU8:
      return builder_.CreateTrunc(Convert(value, from, Arith::kI32), type);
    case DType::kBool:
      return builder_.CreateZExt(Convert(value, from, Arith::kBool), type);
    default:
      return Convert(value, from, ArithOf(dtype));
  }
}

}  // namespace fusor::cpu
