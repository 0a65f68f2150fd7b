#include "codegen/cuda/cuda_expressions.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "codegen/cuda/thread_layout.h"
#include "ir/support/error.h"
#include "ir/support/integer_math.h"
#include "ir/support/str.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::ScalarOp;

// How an op is printed.
enum class Form : uint8_t { kFunction, kOperator, kOther };

struct Row {
  ScalarOp op;
  Form form;
  std::string_view text;
  std::string_view exact = {};  // function without contraction, if it differs
  bool of_floats = false;       // integers are computed in f64
};

constexpr Row kRows[] = {
    {ScalarOp::kNeg, Form::kFunction, "Neg"},
    {ScalarOp::kAbs, Form::kFunction, "Abs"},
    {ScalarOp::kExp, Form::kFunction, "Exp", {}, true},
    {ScalarOp::kLog, Form::kFunction, "Log", {}, true},
    {ScalarOp::kSqrt, Form::kFunction, "Sqrt", {}, true},
    {ScalarOp::kRsqrt, Form::kFunction, "Rsqrt", {}, true},
    {ScalarOp::kTanh, Form::kFunction, "Tanh", {}, true},
    {ScalarOp::kSin, Form::kFunction, "Sin", {}, true},
    {ScalarOp::kCos, Form::kFunction, "Cos", {}, true},
    {ScalarOp::kErf, Form::kFunction, "Erf", {}, true},
    {ScalarOp::kFloor, Form::kFunction, "Floor"},
    {ScalarOp::kRelu, Form::kFunction, "Relu"},
    {ScalarOp::kAdd, Form::kFunction, "Add", "ExactAdd"},
    {ScalarOp::kSub, Form::kFunction, "Sub", "ExactSub"},
    {ScalarOp::kMul, Form::kFunction, "Mul", "ExactMul"},
    {ScalarOp::kDiv, Form::kFunction, "Div"},
    {ScalarOp::kMaximum, Form::kFunction, "Max"},
    {ScalarOp::kMinimum, Form::kFunction, "Min"},
    {ScalarOp::kPow, Form::kFunction, "Pow", {}, true},
    {ScalarOp::kFloorDiv, Form::kFunction, "FloorDiv"},
    {ScalarOp::kRemainder, Form::kFunction, "Remainder"},
    {ScalarOp::kBitwiseAnd, Form::kFunction, "BitwiseAnd"},
    {ScalarOp::kBitwiseOr, Form::kFunction, "BitwiseOr"},
    {ScalarOp::kBitwiseXor, Form::kFunction, "BitwiseXor"},
    {ScalarOp::kAnd, Form::kOperator, "&&"},
    {ScalarOp::kOr, Form::kOperator, "||"},
    {ScalarOp::kEq, Form::kOperator, "=="},
    {ScalarOp::kNe, Form::kOperator, "!="},
    {ScalarOp::kLt, Form::kOperator, "<"},
    {ScalarOp::kLe, Form::kOperator, "<="},
    {ScalarOp::kGt, Form::kOperator, ">"},
    {ScalarOp::kGe, Form::kOperator, ">="},
    {ScalarOp::kIdentity, Form::kOther, ""},
    {ScalarOp::kNot, Form::kOther, ""},
    {ScalarOp::kIsFinite, Form::kOther, ""},
    {ScalarOp::kSelect, Form::kOther, ""},
};
static_assert(std::size(kRows) == ir::kNumScalarOps);

const Row& RowOf(ScalarOp op) {
  return *std::find_if(std::begin(kRows), std::end(kRows),
                       [op](const Row& row) { return row.op == op; });
}

std::string To(const CudaExpression& value, Arith arith) {
  if (value.arith == arith) return value.text;
  // NaN is not zero.
  if (arith == Arith::kBool) return fmt::format("({} != 0)", value.text);
  return fmt::format("({}){}", CudaType(arith), value.text);
}

std::string FloatLiteral(float value) {
  if (std::isfinite(value)) {
    return std::signbit(value) ? fmt::format("({:a}f)", value)
                               : fmt::format("{:a}f", value);
  }
  return fmt::format("__uint_as_float(0x{:08x}u)",
                     std::bit_cast<uint32_t>(value));
}

std::string DoubleLiteral(double value) {
  if (std::isfinite(value)) {
    return std::signbit(value) ? fmt::format("({:a})", value)
                               : fmt::format("{:a}", value);
  }
  return fmt::format("__longlong_as_double(0x{:016x}ll)",
                     std::bit_cast<uint64_t>(value));
}

int64_t Integer(DType dtype, double value) {
  if (dtype == DType::kBool) return value != 0;
  int64_t low = std::numeric_limits<int64_t>::min();
  int64_t high = std::numeric_limits<int64_t>::max();
  if (dtype == DType::kI32) {
    low = std::numeric_limits<int32_t>::min();
    high = std::numeric_limits<int32_t>::max();
  } else if (dtype == DType::kU8) {
    low = 0;
    high = std::numeric_limits<uint8_t>::max();
  }
  if (std::isinf(value)) return value < 0 ? low : high;
  return std::isnan(value) ? 0 : static_cast<int64_t>(value);
}

}  // namespace

std::string_view CudaType(Arith arith) {
  switch (arith) {
    case Arith::kBool:
      return "bool";
    case Arith::kI32:
      return "int";
    case Arith::kI64:
      return "i64";
    case Arith::kF32:
      return "float";
    case Arith::kF64:
      return "double";
  }
  FUSOR_ASSERT(false, "arithmetic {}", static_cast<int>(arith));
}

std::string_view CudaTag(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "F64";
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
    case DType::kU8:
      return "U8";
    case DType::kBool:
      return "Bool";
  }
  FUSOR_ASSERT(false, "dtype {}", static_cast<int>(dtype));
}

std::string_view CudaReduction(ScalarOp op) {
  switch (op) {
    case ScalarOp::kAdd:
      return "AddOp";
    case ScalarOp::kMul:
      return "MulOp";
    case ScalarOp::kMaximum:
      return "MaxOp";
    case ScalarOp::kMinimum:
      return "MinOp";
    case ScalarOp::kAnd:
      return "AndOp";
    case ScalarOp::kOr:
      return "OrOp";
    default:
      FUSOR_ASSERT(false, "{} is not a reduction", ScalarOpName(op));
  }
}

std::string CudaIndex(const Index& index) {
  std::string out;
  for (const Index::Term& term : index.terms) {
    if (term.coefficient == 0) continue;
    if (!out.empty()) out += " + ";
    out += fmt::format("a{}", term.axis);
    if (term.coefficient != 1) out += fmt::format(" * {}", term.coefficient);
  }
  if (out.empty()) return std::to_string(index.offset);
  return index.offset == 0 ? out : fmt::format("{} + {}", index.offset, out);
}

std::string CudaHolds(const std::vector<Bound>& bounds) {
  return Join(bounds, " && ", [](const Bound& bound) {
    return fmt::format("{} < {}", CudaIndex(bound.index), bound.extent);
  });
}

CudaExpression CudaRegister(const Kernel& kernel, int reg) {
  const Register& info = kernel.registers[reg];
  return {fmt::format("r{}{}", reg, info.vector ? "[l]" : ""),
          ArithOf(info.dtype)};
}

std::string CudaInside(const Kernel& kernel, const Stmt& stmt) {
  return Join(stmt.indexed, " && ", [&](const IndexedTerm& term) {
    return fmt::format("(u64)(i64){} < {}ull",
                       CudaRegister(kernel, term.reg).text, term.extent);
  });
}

std::string CudaWarpMask(int threads) {
  const int full = threads / kWarp * kWarp;
  const int rest = threads - full;
  if (rest == 0) return "0xffffffffu";
  const std::string last = fmt::format("0x{:x}u", (1U << rest) - 1);
  if (full == 0) return last;
  return fmt::format("threadIdx.x < {} ? 0xffffffffu : {}", full, last);
}

std::string CudaConstant(DType dtype, double value) {
  switch (ArithOf(dtype)) {
    case Arith::kF64:
      return DoubleLiteral(value);
    case Arith::kF32:
      return FloatLiteral(static_cast<float>(value));
    case Arith::kBool:
      return Integer(dtype, value) != 0 ? "true" : "false";
    case Arith::kI32:
      // The least i32 has no literal.
      return fmt::format("(int)({}ll)", Integer(dtype, value));
    case Arith::kI64:
      return fmt::format("(i64)0x{:x}ull",
                         static_cast<uint64_t>(Integer(dtype, value)));
  }
  FUSOR_ASSERT(false, "dtype {}", static_cast<int>(dtype));
}

std::string CudaConvert(const CudaExpression& value, DType dtype) {
  const bool narrow = dtype == DType::kF16 || dtype == DType::kBF16;
  if (value.arith == ArithOf(dtype)) return value.text;
  if (narrow && value.arith == Arith::kF64) {
    return fmt::format("Odd({})", value.text);
  }
  return To(value, ArithOf(dtype));
}

std::string CudaScalar(ScalarOp op, std::span<const CudaExpression> operands,
                       DType dtype, bool contract) {
  const Row& row = RowOf(op);
  const Arith result = ArithOf(dtype);
  Arith widest = Arith::kI32;
  for (const CudaExpression& operand : operands) {
    widest = std::max(widest, operand.arith);
  }
  const auto as = [&](size_t i, Arith arith) { return To(operands[i], arith); };
  const auto done = [&](std::string text, Arith arith) {
    return CudaConvert({std::move(text), arith}, dtype);
  };
  switch (row.form) {
    case Form::kOperator: {
      const Arith arith = IsComparison(op) ? widest : Arith::kBool;
      return done(
          fmt::format("({} {} {})", as(0, arith), row.text, as(1, arith)),
          Arith::kBool);
    }
    case Form::kFunction: {
      Arith arith = std::max(result, widest);
      if (row.of_floats && !IsFloat(arith)) arith = Arith::kF64;
      std::string text(contract || row.exact.empty() ? row.text : row.exact);
      text += "(" + as(0, arith);
      if (operands.size() > 1) text += ", " + as(1, arith);
      return done(text + ")", arith);
    }
    case Form::kOther:
      break;
  }
  if (op == ScalarOp::kIdentity) return CudaConvert(operands[0], dtype);
  if (op == ScalarOp::kNot) {
    return done(fmt::format("(!{})", as(0, Arith::kBool)), Arith::kBool);
  }
  if (op == ScalarOp::kIsFinite) {
    return done(fmt::format("IsFinite({})", operands[0].text), Arith::kBool);
  }
  return fmt::format("({} ? {} : {})", as(0, Arith::kBool), as(1, result),
                     as(2, result));
}

std::string_view CudaIndexType(const Kernel& kernel) {
  int64_t reach = 0;
  for (const Phase& phase : kernel.phases) {
    reach = std::max(reach, NumTasks(kernel, phase));
    const auto include = [&](const Index& index, int64_t further) {
      int64_t sum = std::abs(index.offset) + further;
      for (const Index::Term& term : index.terms) {
        const Axis& axis = kernel.axes[term.axis];
        const int64_t group = axis.vector ? kernel.lanes : 1;
        const int64_t end = RoundUp(axis.extent, group);
        sum += std::abs(term.coefficient) * (end - 1);
      }
      reach = std::max(reach, sum);
    };
    VisitStatements(phase.body, [&](const Stmt& stmt) {
      int64_t further = 0;
      for (const IndexedTerm& term : stmt.indexed) {
        further += term.stride * (term.extent - 1);
      }
      include(stmt.index, further);
      for (const Bound& bound : stmt.bounds) include(bound.index, 0);
    });
  }
  return reach < std::numeric_limits<int32_t>::max() ? "int" : "i64";
}

}  // namespace fusor::codegen
