#include "ir/scalar_op.h"

#include <cmath>
#include <limits>

#include "ir/support/error.h"

namespace fusor::ir {
namespace {

struct ScalarOpRow {
  ScalarOp op;
  std::string_view name;
  int arity;
  ScalarFunction eval;
};

double NanMaximum(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? NAN : (a > b ? a : b);
}
// Rounds the quotient down. Division by zero gives zero.
double FloorQuotient(double a, double b) {
  return b == 0 ? 0 : std::floor(a / b);
}
// Has the sign of b; NaN, which an integer rounds to 0, if b is zero.
double FloorRemainder(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
int64_t Bits(double x) { return static_cast<int64_t>(x); }
double NanMinimum(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? NAN : (a < b ? a : b);
}

constexpr ScalarOpRow kScalarOps[] = {
    {ScalarOp::kIdentity, "identity", 1, [](const double* x) { return x[0]; }},
    {ScalarOp::kNeg, "neg", 1, [](const double* x) { return -x[0]; }},
    {ScalarOp::kAbs, "abs", 1, [](const double* x) { return std::fabs(x[0]); }},
    {ScalarOp::kExp, "exp", 1, [](const double* x) { return std::exp(x[0]); }},
    {ScalarOp::kLog, "log", 1, [](const double* x) { return std::log(x[0]); }},
    {ScalarOp::kSqrt, "sqrt", 1,
     [](const double* x) { return std::sqrt(x[0]); }},
    {ScalarOp::kRsqrt, "rsqrt", 1,
     [](const double* x) { return 1 / std::sqrt(x[0]); }},
    {ScalarOp::kTanh, "tanh", 1,
     [](const double* x) { return std::tanh(x[0]); }},
    {ScalarOp::kSin, "sin", 1, [](const double* x) { return std::sin(x[0]); }},
    {ScalarOp::kCos, "cos", 1, [](const double* x) { return std::cos(x[0]); }},
    {ScalarOp::kErf, "erf", 1, [](const double* x) { return std::erf(x[0]); }},
    {ScalarOp::kFloor, "floor", 1,
     [](const double* x) { return std::floor(x[0]); }},
    {ScalarOp::kRelu, "relu", 1,
     [](const double* x) { return x[0] < 0 ? 0 : x[0] + 0.0; }},
    {ScalarOp::kNot, "not", 1, [](const double* x) { return double(!x[0]); }},
    {ScalarOp::kIsFinite, "is_finite", 1,
     [](const double* x) { return double(std::isfinite(x[0])); }},
    {ScalarOp::kAdd, "add", 2, [](const double* x) { return x[0] + x[1]; }},
    {ScalarOp::kSub, "sub", 2, [](const double* x) { return x[0] - x[1]; }},
    {ScalarOp::kMul, "mul", 2, [](const double* x) { return x[0] * x[1]; }},
    {ScalarOp::kDiv, "div", 2, [](const double* x) { return x[0] / x[1]; }},
    {ScalarOp::kMaximum, "maximum", 2,
     [](const double* x) { return NanMaximum(x[0], x[1]); }},
    {ScalarOp::kMinimum, "minimum", 2,
     [](const double* x) { return NanMinimum(x[0], x[1]); }},
    {ScalarOp::kPow, "pow", 2,
     [](const double* x) { return std::pow(x[0], x[1]); }},
    {ScalarOp::kFloorDiv, "floor_div", 2,
     [](const double* x) { return FloorQuotient(x[0], x[1]); }},
    {ScalarOp::kRemainder, "remainder", 2,
     [](const double* x) { return FloorRemainder(x[0], x[1]); }},
    {ScalarOp::kBitwiseAnd, "bitwise_and", 2,
     [](const double* x) { return double(Bits(x[0]) & Bits(x[1])); }},
    {ScalarOp::kBitwiseOr, "bitwise_or", 2,
     [](const double* x) { return double(Bits(x[0]) | Bits(x[1])); }},
    {ScalarOp::kBitwiseXor, "bitwise_xor", 2,
     [](const double* x) { return double(Bits(x[0]) ^ Bits(x[1])); }},
    {ScalarOp::kAnd, "and", 2,
     [](const double* x) { return double(x[0] && x[1]); }},
    {ScalarOp::kOr, "or", 2,
     [](const double* x) { return double(x[0] || x[1]); }},
    {ScalarOp::kEq, "eq", 2,
     [](const double* x) { return double(x[0] == x[1]); }},
    {ScalarOp::kNe, "ne", 2,
     [](const double* x) { return double(x[0] != x[1]); }},
    {ScalarOp::kLt, "lt", 2,
     [](const double* x) { return double(x[0] < x[1]); }},
    {ScalarOp::kLe, "le", 2,
     [](const double* x) { return double(x[0] <= x[1]); }},
    {ScalarOp::kGt, "gt", 2,
     [](const double* x) { return double(x[0] > x[1]); }},
    {ScalarOp::kGe, "ge", 2,
     [](const double* x) { return double(x[0] >= x[1]); }},
    {ScalarOp::kSelect, "select", 3,
     [](const double* x) { return x[0] != 0 ? x[1] : x[2]; }},
};
static_assert(std::size(kScalarOps) == kNumScalarOps);

const ScalarOpRow& RowOf(ScalarOp op) {
  const ScalarOpRow& row = kScalarOps[static_cast<int>(op)];
  FUSOR_ASSERT(row.op == op, "scalar table out of order at {}", row.name);
  return row;
}

}  // namespace

double ScalarCost(ScalarOp op) {
  switch (op) {
    case ScalarOp::kDiv:
    case ScalarOp::kSqrt:
    case ScalarOp::kRsqrt:
      return 8;
    case ScalarOp::kExp:
    case ScalarOp::kFloorDiv:
    case ScalarOp::kRemainder:
      return 12;
    case ScalarOp::kLog:
    case ScalarOp::kTanh:
    case ScalarOp::kErf:
      return 20;
    case ScalarOp::kSin:
    case ScalarOp::kCos:
    case ScalarOp::kPow:
      return 40;
    default:
      return 1;
  }
}

std::string_view ScalarOpName(ScalarOp op) { return RowOf(op).name; }

std::optional<ScalarOp> ParseScalarOp(std::string_view name) {
  for (const ScalarOpRow& row : kScalarOps) {
    if (row.name == name) return row.op;
  }
  return std::nullopt;
}

int ScalarArity(ScalarOp op) { return RowOf(op).arity; }

bool IsComparison(ScalarOp op) {
  return op >= ScalarOp::kEq && op <= ScalarOp::kGe;
}

double EvalScalar(ScalarOp op, std::span<const double> operands) {
  return RowOf(op).eval(operands.data());
}

ScalarFunction ScalarEvaluator(ScalarOp op) { return RowOf(op).eval; }

double ReductionIdentity(ScalarOp op) {
  switch (op) {
    case ScalarOp::kAdd:
    case ScalarOp::kOr:
      return 0;
    case ScalarOp::kMul:
    case ScalarOp::kAnd:
      return 1;
    case ScalarOp::kMaximum:
      return -std::numeric_limits<double>::infinity();
    case ScalarOp::kMinimum:
      return std::numeric_limits<double>::infinity();
    default:
      FUSOR_ASSERT(false, "{} is not a reduction", ScalarOpName(op));
  }
}

}  // namespace fusor::ir
