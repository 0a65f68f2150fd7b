#include <array>

#include "codegen/cpu/scalar_emitter.h"

namespace fusor::cpu {
namespace {

using llvm::Value;

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
