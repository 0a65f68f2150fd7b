// Compares every scalar op in every dtype, and conversions, with
// ir::EvalScalar.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ir/scalar_op.h"
#include "tests/runtime/cpu/cpu_fixture.h"
#include "tests/testing/kernel_statements.h"

namespace fusor::test {
namespace {

using codegen::Kernel;
using ir::DType;
using ir::ScalarOp;

// Returns a kernel y = op(operands) on vectors of n elements. `types` lists the
// operands' dtypes, then the result's.
Kernel ScalarKernel(ScalarOp op, const std::vector<DType>& types, int64_t n,
                    bool vector, bool round) {
  Kernel k;
  k.name = "scalar";
  k.lanes = 16;
  k.contract = false;
  k.axes = {{"i", n, vector}};
  std::vector<Stmt> body;
  const auto arity = static_cast<int>(types.size()) - 1;
  Stmt compute = Compute(op, arity, {}, round);
  for (int i = 0; i <= arity; ++i) {
    k.buffers.push_back({"b" + std::to_string(i), types[i], n, i == arity});
    k.registers.push_back({types[i], vector});
    if (i < arity) {
      body.push_back(Load(i, i, {0, {{0, 1}}}));
      compute.src[i] = i;
    }
  }
  body.push_back(compute);
  body.push_back(Store(arity, {0, {{0, 1}}}, arity));
  k.phases.push_back({{0}, body});
  return k;
}

std::vector<double> Apply(ScalarOp op, const std::vector<DType>& types,
                          const std::vector<std::vector<double>>& operands,
                          bool vector, bool round) {
  const size_t n = operands[0].size();
  std::vector<std::string> buffers;
  for (size_t i = 0; i < operands.size(); ++i) {
    buffers.push_back(ToBytes(types[i], operands[i]));
  }
  buffers.push_back(ToBytes(types.back(), std::vector<double>(n)));
  const Kernel kernel =
      ScalarKernel(op, types, static_cast<int64_t>(n), vector, round);
  return FromBytes(types.back(), Cpu::Get().Run(kernel, buffers).back());
}

std::vector<double> Samples(DType dtype) {
  if (dtype == DType::kBool) return {0, 1};
  if (dtype == DType::kU8) return {0, 1, 2, 3, 7, 100, 127, 128, 200, 255};
  if (!ir::IsFloat(dtype)) {
    return {0,         1,    -1,     2,        -2,
            3,         7,    -8,     15,       -16,
            100,       4095, -65536, 40000000, -2147483648.0,
            2147483647};
  }
  std::vector<double> values{0.0,     -0.0, 1,        -1,        0.5,  -0.5,
                             1.5,     -2.5, 3,        -3,        0.1,  -0.7,
                             2.75,    10,   -20,      100.0625,  1e-3, 60000,
                             1 / 3.0, -1e4, INFINITY, -INFINITY, NAN};
  for (double& value : values) value = ir::RoundTo(dtype, value);
  return values;
}

bool IsPredicate(ScalarOp op) {
  return ir::IsComparison(op) || op == ScalarOp::kNot ||
         op == ScalarOp::kIsFinite || op == ScalarOp::kAnd ||
         op == ScalarOp::kOr;
}

// Returns the permitted error of an op in units in the last place of `dtype`.
double ToleranceOf(ScalarOp op, DType dtype) {
  switch (op) {
    case ScalarOp::kExp:
    case ScalarOp::kLog:
    case ScalarOp::kTanh:
    case ScalarOp::kSin:
    case ScalarOp::kCos:
    case ScalarOp::kErf:
    case ScalarOp::kRsqrt:
    case ScalarOp::kPow:
      // 16-bit results are computed in f32 and rounded.
      return dtype == DType::kF32 ? 2 : 1;
    default:
      return 0;
  }
}

double Ulp(DType dtype, double x) {
  const int fraction = dtype == DType::kF64   ? 52
                       : dtype == DType::kF32 ? 23
                       : dtype == DType::kF16 ? 10
                                              : 7;
  const int smallest = dtype == DType::kF16   ? -14
                       : dtype == DType::kF64 ? -1022
                                              : -126;
  return std::ldexp(1.0, std::max(std::ilogb(x), smallest) - fraction);
}

bool Agrees(DType dtype, double actual, double expected, double ulps) {
  if (std::isnan(expected)) return std::isnan(actual);
  if (actual == expected) return true;
  const bool subnormal =
      std::fabs(expected) < std::numeric_limits<float>::min();
  if (dtype != DType::kF64 && subnormal && actual == 0) return true;
  if (std::isinf(expected) || !ir::IsFloat(dtype)) return false;
  return std::fabs(actual - expected) <= ulps * Ulp(dtype, expected);
}

// Returns all combinations of the samples.
std::vector<std::vector<double>> Combine(
    const std::vector<std::vector<double>>& samples) {
  std::vector<std::vector<double>> columns(samples.size());
  std::vector<size_t> at(samples.size(), 0);
  for (;;) {
    for (size_t i = 0; i < samples.size(); ++i) {
      columns[i].push_back(samples[i][at[i]]);
    }
    size_t i = samples.size();
    while (i > 0 && ++at[i - 1] == samples[i - 1].size()) at[--i] = 0;
    if (i == 0) return columns;
  }
}

struct Case {
  ScalarOp op;
  DType dtype;
};

bool IsOfIntegers(ScalarOp op) {
  return op == ScalarOp::kFloorDiv || op == ScalarOp::kBitwiseAnd ||
         op == ScalarOp::kBitwiseOr || op == ScalarOp::kBitwiseXor;
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (int i = 0; i < ir::kNumScalarOps; ++i) {
    for (DType dtype : ir::kAllDTypes) {
      const auto op = static_cast<ScalarOp>(i);
      if (IsOfIntegers(op) && ir::IsFloat(dtype)) continue;
      cases.push_back({op, dtype});
    }
  }
  return cases;
}

class CpuScalarTest : public ::testing::TestWithParam<Case> {};

TEST_P(CpuScalarTest, AgreesWithItsDefinition) {
  const auto [op, dtype] = GetParam();
  const int arity = ir::ScalarArity(op);
  std::vector<DType> types(arity, dtype);
  if (op == ScalarOp::kSelect) types[0] = DType::kBool;
  types.push_back(IsPredicate(op) ? DType::kBool : dtype);
  std::vector<std::vector<double>> samples;
  for (int i = 0; i < arity; ++i) samples.push_back(Samples(types[i]));
  const auto operands = Combine(samples);
  for (bool vector : {true, false}) {
    for (bool round : {true, false}) {
      const auto actual = Apply(op, types, operands, vector, round);
      for (size_t i = 0; i < actual.size(); ++i) {
        double x[3];
        for (int a = 0; a < arity; ++a) x[a] = operands[a][i];
        const double exact =
            ir::EvalScalar(op, {x, static_cast<size_t>(arity)});
        // Conversions of out-of-range floats to integers are unspecified.
        const double range = ToleranceOf(op, DType::kF32) > 0 ? 0x1p31 : 0x1p53;
        if (!ir::IsFloat(types.back()) && !(std::fabs(exact) < range)) {
          continue;
        }
        const double expected = ir::RoundTo(types.back(), exact);
        ASSERT_TRUE(Agrees(types.back(), actual[i], expected,
                           ToleranceOf(op, types.back())))
            << ScalarOpName(op) << " " << DTypeName(dtype) << " of " << x[0]
            << ", " << (arity > 1 ? x[1] : 0) << ", " << (arity > 2 ? x[2] : 0)
            << ": " << actual[i] << ", expected " << expected
            << (vector ? " (vector)" : " (uniform)");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuScalarTest, ::testing::ValuesIn(AllCases()),
                         [](const ::testing::TestParamInfo<Case>& instance) {
                           return std::string(ScalarOpName(instance.param.op)) +
                                  "_" +
                                  std::string(DTypeName(instance.param.dtype));
                         });

// Loads and stores convert between any two dtypes like ir::RoundTo.
TEST(CpuConversionTest, EveryPairOfDtypes) {
  for (DType from : ir::kAllDTypes) {
    for (DType to : ir::kAllDTypes) {
      std::vector<double> x = Samples(from);
      if (!ir::IsFloat(to)) {  // conversions out of range are unspecified
        std::erase_if(x, [](double v) { return !(std::fabs(v) < 0x1p31); });
      }
      const auto actual =
          Apply(ScalarOp::kIdentity, {from, to}, {x}, true, true);
      for (size_t i = 0; i < x.size(); ++i) {
        const double expected = ir::RoundTo(to, x[i]);
        EXPECT_TRUE(Agrees(to, actual[i], expected, 0))
            << DTypeName(from) << " " << x[i] << " to " << DTypeName(to) << ": "
            << actual[i] << ", expected " << expected;
      }
    }
  }
}

// Returns 0 for subnormal f32, which generated code flushes.
double Flushed(double x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? 0 * x : x;
}

TEST(CpuConversionTest, EverySixteenBitFloatSurvivesTheRoundTrip) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<uint16_t> bits(1 << 16);
    for (size_t i = 0; i < bits.size(); ++i) {
      bits[i] = static_cast<uint16_t>(i);
    }
    const std::vector<double> exact = FromBytes(dtype, Bytes(bits));
    const Kernel widen = ScalarKernel(ScalarOp::kIdentity, {dtype, DType::kF32},
                                      1 << 16, true, true);
    const auto wide = FromBytes(
        DType::kF32,
        Cpu::Get().Run(widen, {Bytes(bits), std::string(4 << 16, '\0')})[1]);
    const Kernel copy =
        ScalarKernel(ScalarOp::kIdentity, {dtype, dtype}, 1 << 16, true, true);
    const auto same = As<uint16_t>(
        Cpu::Get().Run(copy, {Bytes(bits), std::string(2 << 16, '\0')})[1]);
    for (size_t i = 0; i < bits.size(); ++i) {
      if (std::isnan(exact[i])) {
        ASSERT_TRUE(std::isnan(wide[i])) << bits[i];
        continue;
      }
      ASSERT_TRUE(wide[i] == exact[i] || wide[i] == Flushed(exact[i]))
          << DTypeName(dtype) << " " << bits[i];
      if (Flushed(exact[i]) == exact[i]) {
        ASSERT_EQ(same[i], bits[i]) << DTypeName(dtype);
      }
    }
  }
}

// Converts every 16-bit float, the midpoint to its successor, and the floats
// next to the midpoint.
TEST(CpuConversionTest, NarrowingRoundsToNearestEven) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<float> x;
    for (uint32_t bits = 0; bits < 0xffff; ++bits) {
      const std::vector<uint16_t> pair{static_cast<uint16_t>(bits),
                                       static_cast<uint16_t>(bits + 1)};
      const std::vector<double> ends = FromBytes(dtype, Bytes(pair));
      if (!std::isfinite(ends[0]) || std::isnan(ends[1])) continue;
      // Above the largest finite value, the midpoint is the threshold of
      // infinity.
      const double next =
          std::isinf(ends[1])
              ? ends[0] + std::copysign(Ulp(dtype, ends[0]), ends[0])
              : ends[1];
      const auto middle = static_cast<float>((ends[0] + next) / 2);
      for (float value : {static_cast<float>(ends[0]), middle,
                          std::nextafter(middle, INFINITY),
                          std::nextafter(middle, -INFINITY)}) {
        if (std::isfinite(value) && std::fpclassify(value) != FP_SUBNORMAL) {
          x.push_back(value);
        }
      }
    }
    for (bool vector : {true, false}) {
      const auto n = static_cast<int64_t>(x.size());
      const Kernel k = ScalarKernel(ScalarOp::kIdentity, {DType::kF32, dtype},
                                    n, vector, false);
      const auto y = FromBytes(
          dtype, Cpu::Get().Run(k, {Bytes(x), std::string(2 * n, '\0')})[1]);
      for (size_t i = 0; i < x.size(); ++i) {
        const double expected = ir::RoundTo(dtype, x[i]);
        ASSERT_TRUE(y[i] == expected || y[i] == Flushed(expected))
            << DTypeName(dtype) << " " << x[i] << ": " << y[i] << ", expected "
            << expected;
      }
    }
  }
}

// Conversions from f64 round once: some values are closer to a midpoint than
// f32 can represent.
TEST(CpuConversionTest, NarrowingFromDoubleRoundsOnce) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const double ulp = dtype == DType::kF16 ? 0x1p-10 : 0x1p-7;
    const std::vector<double> x{1 + ulp / 2,
                                1 + ulp / 2 + 0x1p-40,
                                1 + ulp / 2 - 0x1p-40,
                                1 + 1.5 * ulp,
                                1 + 1.5 * ulp - 0x1p-40,
                                -1 - ulp / 2 - 0x1p-40,
                                -1 - ulp / 2 + 0x1p-40,
                                1e300,
                                -1e300,
                                INFINITY,
                                NAN,
                                0.0,
                                65519.99999999,
                                65520};
    for (bool vector : {true, false}) {
      const auto y =
          Apply(ScalarOp::kIdentity, {DType::kF64, dtype}, {x}, vector, true);
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_TRUE(Agrees(dtype, y[i], ir::RoundTo(dtype, x[i]), 0))
            << DTypeName(dtype) << " " << x[i] << ": " << y[i];
      }
    }
  }
}

}  // namespace
}  // namespace fusor::test
