#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace fusor::ir {

// Scalar functions: the element functions of elementwise ops, the instructions
// of kernel bodies and the combiners of reductions. scalar_op.cc has one row
// per entry; code generators have tables over the same enumerators.
enum class ScalarOp : uint8_t {
  // one operand
  kIdentity,  // also cast: the result's dtype converts
  kNeg,
  kAbs,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kTanh,
  kSin,
  kCos,
  kErf,
  kFloor,
  kRelu,
  kNot,
  kIsFinite,
  // two operands
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMaximum,
  kMinimum,
  kPow,
  kFloorDiv,  // of integers
  kRemainder,
  kBitwiseAnd,  // integers only, also the next two
  kBitwiseOr,
  kBitwiseXor,
  kAnd,  // logical
  kOr,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  // three operands
  kSelect,  // predicate, if true, if false
};

inline constexpr int kNumScalarOps = static_cast<int>(ScalarOp::kSelect) + 1;

std::string_view ScalarOpName(ScalarOp op);
std::optional<ScalarOp> ParseScalarOp(std::string_view name);
int ScalarArity(ScalarOp op);
// Returns how many additions take about as long in vector code.
double ScalarCost(ScalarOp op);
bool IsComparison(ScalarOp op);

// Computes the reference result in double precision. REQUIRES: operands.size()
// == ScalarArity(op). Integers are exact up to 2^53.
double EvalScalar(ScalarOp op, std::span<const double> operands);

// Returns `op` as a function of ScalarArity(op) contiguous operands.
using ScalarFunction = double (*)(const double* operands);
ScalarFunction ScalarEvaluator(ScalarOp op);

// Returns the identity element of a reduction by `op`: 0 for add, -infinity for
// maximum, ... REQUIRES: op is kAdd, kMul, kMaximum, kMinimum, kAnd or kOr.
double ReductionIdentity(ScalarOp op);

}  // namespace fusor::ir
