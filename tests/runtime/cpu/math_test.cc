// Checks the accuracy of the elementary functions in generated code against
// libm in double precision.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/runtime/cpu/cpu_fixture.h"
#include "tests/testing/kernel_statements.h"

namespace fusor::test {
namespace {

using codegen::Kernel;
using ir::DType;
using ir::ScalarOp;

// Returns a kernel that computes op(x, y) of n elements of f32.
Kernel Elementwise(ScalarOp op, int64_t n, int lanes) {
  Kernel k;
  k.name = "math";
  k.lanes = lanes;
  k.buffers = {{"x", DType::kF32, n},
               {"y", DType::kF32, n},
               {"z", DType::kF32, n, true}};
  k.axes = {{"i", n, true}};
  k.registers = {{DType::kF32, true}, {DType::kF32, true}, {DType::kF32, true}};
  Stmt compute =
      ir::ScalarArity(op) == 1 ? Compute(op, 2, {0}) : Compute(op, 2, {0, 1});
  k.phases.push_back({{0},
                      {Load(0, 0, {0, {{0, 1}}}), Load(1, 1, {0, {{0, 1}}}),
                       compute, Store(2, {0, {{0, 1}}}, 2)}});
  return k;
}

std::vector<float> Apply(ScalarOp op, const std::vector<float>& x,
                         const std::vector<float>& y, int lanes = 16) {
  const auto n = static_cast<int64_t>(x.size());
  return As<float>(
      Cpu::Get().Run(Elementwise(op, n, lanes),
                     {Bytes(x), Bytes(y), std::string(4 * n, '\0')})[2]);
}

// Returns the error of `actual` in units in the last place of the exact value
// as a float. Subnormals count as zero. Returns infinity if only one is NaN or
// infinite.
double UlpError(float actual, double exact) {
  const auto nearest = static_cast<float>(exact);
  if (std::isnan(actual) || std::isnan(exact)) {
    return std::isnan(actual) && std::isnan(exact) ? 0 : INFINITY;
  }
  if (std::isinf(actual) || std::isinf(nearest)) {
    // Near the overflow threshold, the largest float and infinity are both
    // right.
    const double limit = std::numeric_limits<float>::max();
    const bool close = std::fabs(exact) > limit * (1 - 1e-7) &&
                       std::fabs(exact) < limit * (1 + 1e-6);
    return actual == nearest || close ? 0 : INFINITY;
  }
  constexpr double kSmallest = std::numeric_limits<float>::min();
  if (std::fabs(exact) < kSmallest) {
    return std::fabs(actual) <= kSmallest ? 0 : INFINITY;
  }
  const double unit = std::ldexp(1.0, std::ilogb(exact) - 23);
  return std::fabs(actual - exact) / unit;
}

// Returns every 509th float and special values.
std::vector<float> Sweep() {
  std::vector<float> x;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 509) {
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (float special :
       {0.0f, -0.0f, 1.0f, -1.0f, INFINITY, -INFINITY, NAN, 0x1p-126f,
        -0x1p-126f, 3.4028235e38f, 88.72284f, 88.7229f, -87.33655f, 0.625f,
        0.927734375f, 4.0f, 0.70710677f, 0.7071068f}) {
    x.push_back(special);
  }
  return x;
}

double WorstError(ScalarOp op, const std::function<double(double)>& exact) {
  const std::vector<float> x = Sweep();
  const std::vector<float> z = Apply(op, x, x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    // Subnormal operands count as zero.
    const bool subnormal = std::fpclassify(x[i]) == FP_SUBNORMAL;
    const double argument = subnormal ? std::copysign(0.0, x[i]) : x[i];
    const double error = UlpError(z[i], exact(argument));
    if (!(error <= worst)) {
      worst = error;
      if (worst > 2) {
        ADD_FAILURE() << ScalarOpName(op) << "(" << x[i] << ") = " << z[i]
                      << ", expected " << exact(argument);
        return worst;
      }
    }
  }
  return worst;
}

// Huge values in other lanes must not change an element's bits.
TEST(CpuMathTest, NoElementDependsOnItsNeighbours) {
  std::vector<float> alone, beside;
  for (int i = 0; i < 1000; ++i) {
    alone.push_back(0.01f * static_cast<float>(i) - 5);
    alone.push_back(1);
    beside.push_back(alone[2 * i]);
    beside.push_back(i % 2 == 0 ? 1e30f : -INFINITY);
  }
  for (const ScalarOp op : {ScalarOp::kExp, ScalarOp::kLog, ScalarOp::kTanh,
                            ScalarOp::kErf, ScalarOp::kSin, ScalarOp::kCos}) {
    const std::vector<float> expected = Apply(op, alone, alone);
    const std::vector<float> actual = Apply(op, beside, beside);
    for (size_t i = 0; i < alone.size(); i += 2) {
      ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]),
                std::bit_cast<uint32_t>(expected[i]))
          << ScalarOpName(op) << "(" << alone[i] << ")";
    }
  }
}

TEST(CpuMathTest, LongVectorsUseTheInstructionsOfShortOnes) {
  const auto scales = [](int lanes) {
    const auto artifacts = Cpu::Get().compiler().KernelArtifacts(
        Elementwise(ScalarOp::kExp, 256, lanes));
    return artifacts.at(1).text.find("vscalefps") != std::string::npos;
  };
  EXPECT_EQ(scales(32), scales(16));
  EXPECT_EQ(scales(64), scales(16));
}

// With AVX-512, vectors of 8 and 16 lanes are scaled by another instruction
// than those of 4, and longer ones are divided into vectors of 16.
TEST(CpuMathTest, NoBitDependsOnTheNumberOfLanes) {
  std::vector<float> x;
  const std::vector<float> sweep = Sweep();
  for (size_t i = 0; i < sweep.size(); i += 64) x.push_back(sweep[i]);
  for (const float limit : {-105.0f, -104.0f, -88.0f, -87.0f, 88.0f, 89.0f}) {
    for (int i = -50; i < 50; ++i) {
      x.push_back(limit + 0.02f * static_cast<float>(i));
    }
  }
  for (const ScalarOp op : {ScalarOp::kExp, ScalarOp::kTanh, ScalarOp::kErf}) {
    const std::vector<float> expected = Apply(op, x, x, 4);
    for (const int lanes : {8, 16, 32, 64}) {
      const std::vector<float> actual = Apply(op, x, x, lanes);
      for (size_t i = 0; i < x.size(); ++i) {
        if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
        ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]),
                  std::bit_cast<uint32_t>(expected[i]))
            << ScalarOpName(op) << "(" << x[i] << "), " << lanes << " lanes";
      }
    }
  }
}

TEST(CpuMathTest, FunctionsOfOneOperandAreWithinTwoUlp) {
  const auto report = [](ScalarOp op, double worst) {
    ::testing::Test::RecordProperty(std::string(ScalarOpName(op)),
                                    std::to_string(worst));
    EXPECT_LE(worst, 2) << ScalarOpName(op);
  };
  report(ScalarOp::kExp,
         WorstError(ScalarOp::kExp, [](double x) { return std::exp(x); }));
  report(ScalarOp::kLog,
         WorstError(ScalarOp::kLog, [](double x) { return std::log(x); }));
  report(ScalarOp::kTanh,
         WorstError(ScalarOp::kTanh, [](double x) { return std::tanh(x); }));
  report(ScalarOp::kSin,
         WorstError(ScalarOp::kSin, [](double x) { return std::sin(x); }));
  report(ScalarOp::kCos,
         WorstError(ScalarOp::kCos, [](double x) { return std::cos(x); }));
  report(ScalarOp::kErf,
         WorstError(ScalarOp::kErf, [](double x) { return std::erf(x); }));
  report(ScalarOp::kRsqrt, WorstError(ScalarOp::kRsqrt, [](double x) {
           return 1 / std::sqrt(x);
         }));
}

TEST(CpuMathTest, SquareRootsAreExact) {
  const std::vector<float> x = Sweep();
  const std::vector<float> z = Apply(ScalarOp::kSqrt, x, x);
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::fpclassify(x[i]) == FP_SUBNORMAL) continue;
    if (std::isnan(std::sqrt(x[i]))) {
      ASSERT_TRUE(std::isnan(z[i])) << x[i];
    } else {
      ASSERT_EQ(z[i], std::sqrt(x[i])) << x[i];
    }
  }
}

TEST(CpuMathTest, SignsOfZeroAndInfinitySurvive) {
  const std::vector<float> x{0.0f, -0.0f, INFINITY, -INFINITY};
  for (ScalarOp op : {ScalarOp::kTanh, ScalarOp::kErf}) {
    const std::vector<float> z = Apply(op, x, x);
    EXPECT_FALSE(std::signbit(z[0])) << ScalarOpName(op);
    EXPECT_TRUE(std::signbit(z[1])) << ScalarOpName(op);
    EXPECT_EQ(z[2], 1) << ScalarOpName(op);
    EXPECT_EQ(z[3], -1) << ScalarOpName(op);
  }
}

TEST(CpuMathTest, PowersAreWithinOneUlp) {
  std::vector<float> x, y;
  // Bases of all magnitudes, with exponents that spread the results over all
  // magnitudes.
  uint32_t state = 12345;
  const auto next = [&state] { return state = state * 1664525 + 1013904223; };
  for (int i = 0; i < 1 << 21; ++i) {
    const float base =
        std::ldexp(1 + static_cast<float>(next() >> 9) * 0x1p-23f,
                   static_cast<int>(next() >> 24) - 126);
    const double scale = (static_cast<double>(next()) * 0x1p-31 - 1) * 140;
    const double log2 = std::log2(base);
    x.push_back(base);
    y.push_back(static_cast<float>(log2 == 0 ? scale : scale / log2));
  }
  // Bases near one, and small integer exponents of both signs.
  for (int i = 1; i < 1 << 18; ++i) {
    x.push_back(1 + static_cast<float>(i - (1 << 17)) * 0x1p-23f);
    y.push_back(static_cast<float>(next() >> 8));
    x.push_back(static_cast<float>(static_cast<int32_t>(next())) * 0x1p-20f);
    y.push_back(static_cast<float>(static_cast<int32_t>(next()) >> 29));
  }
  const std::vector<float> z = Apply(ScalarOp::kPow, x, y);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = UlpError(z[i], std::pow(double{x[i]}, double{y[i]}));
    worst = std::max(worst, error);
    ASSERT_LE(error, 1) << "pow(" << x[i] << ", " << y[i] << ") = " << z[i];
  }
  RecordProperty("pow", std::to_string(worst));
}

TEST(CpuMathTest, PowersOfSpecialValuesAreAsInC) {
  const std::vector<float> values{
      0.0f,   -0.0f, 1.0f,  -1.0f, 2.0f,     -2.0f,     0.5f,      -0.5f,
      3.0f,   -3.0f, 2.5f,  -2.5f, 1e30f,    -1e30f,    NAN,       16777216.0f,
      1e-30f, 7.0f,  -7.0f, 1e10f, INFINITY, -INFINITY, 8388609.0f};
  std::vector<float> x, y;
  for (float a : values) {
    for (float b : values) {
      x.push_back(a);
      y.push_back(b);
    }
  }
  const std::vector<float> z = Apply(ScalarOp::kPow, x, y);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto exact = static_cast<float>(std::pow(double{x[i]}, double{y[i]}));
    EXPECT_LE(UlpError(z[i], std::pow(double{x[i]}, double{y[i]})), 1)
        << "pow(" << x[i] << ", " << y[i] << ") = " << z[i];
    if (!std::isnan(exact)) {
      EXPECT_EQ(std::signbit(z[i]), std::signbit(exact))
          << "pow(" << x[i] << ", " << y[i] << ") = " << z[i];
    }
  }
}

}  // namespace
}  // namespace fusor::test
