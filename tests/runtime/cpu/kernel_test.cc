// Compiles and runs handwritten kernels, and compares them with the kernel
// interpreter.

#include <gmock/gmock.h>

#include <cmath>

#include "ir/support/philox.h"
#include "tests/runtime/cpu/cpu_fixture.h"
#include "tests/testing/kernel_statements.h"

namespace fusor::test {
namespace {

using codegen::Kernel;
using ir::DType;
using ir::ScalarOp;

std::vector<float> Ramp(int64_t n, double step = 0.25) {
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) {
    values[i] = static_cast<float>(static_cast<double>(i % 97 - 40) * step);
  }
  return values;
}

// Checks that the buffers are bit-identical to the interpreter's.
void ExpectAsInterpreted(const Kernel& kernel,
                         const std::vector<std::string>& buffers) {
  const auto actual = Cpu::Get().Run(kernel, buffers);
  const auto expected = Cpu::Interpret(kernel, buffers);
  for (size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_EQ(FromBytes(kernel.buffers[i].dtype, actual[i]),
              FromBytes(kernel.buffers[i].dtype, expected[i]))
        << Print(kernel) << "buffer " << i;
  }
}

// y = |x| + 1 with the vector axis in the grid or as a loop.
Kernel AbsPlusOne(int64_t n, int lanes, bool in_grid) {
  Kernel k;
  k.name = "abs_plus_one";
  k.lanes = lanes;
  k.contract = false;
  k.buffers = {{"x", DType::kF32, n}, {"y", DType::kF32, n, true}};
  k.axes = {{"i", n, true}};
  k.registers = {{DType::kF32, true}, {DType::kF32, true}, {DType::kF32}};
  std::vector<Stmt> body{Constant(2, 1), Load(0, 0, {0, {{0, 1}}}),
                         Compute(ScalarOp::kAbs, 1, {0}),
                         Compute(ScalarOp::kAdd, 1, {1, 2}),
                         Store(1, {0, {{0, 1}}}, 1)};
  if (in_grid) {
    k.phases.push_back({{0}, body});
  } else {
    k.phases.push_back({{}, {Loop(0, body)}});
  }
  return k;
}

TEST(CpuKernelTest, EveryExtentStopsWhereItShould) {
  for (int lanes : {1, 4, 8, 16, 32}) {
    for (int64_t n : {1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 1000}) {
      for (bool in_grid : {false, true}) {
        ExpectAsInterpreted(AbsPlusOne(n, lanes, in_grid),
                            {Bytes(Ramp(n)), std::string(4 * n, '\0')});
      }
    }
  }
}

TEST(CpuKernelTest, LargeGridsAreSharedAmongThreads) {
  constexpr int64_t kN = 1 << 20;
  const auto x = Ramp(kN + 5);
  const auto y =
      As<float>(Cpu::Get().Run(AbsPlusOne(kN + 5, 16, true),
                               {Bytes(x), std::string(4 * (kN + 5), '\0')})[1]);
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(y[i], std::fabs(x[i]) + 1) << i;
  }
}

// y[a, b, c] = x[b, c, a] with all axes in the grid.
TEST(CpuKernelTest, GridsOfSeveralAxesAdvanceLikeAnOdometer) {
  for (int64_t c : {5, 8, 20}) {
    Kernel k;
    k.name = "transpose";
    k.lanes = 8;
    k.buffers = {{"x", DType::kF32, 3 * 7 * c},
                 {"y", DType::kF32, 3 * 7 * c, true}};
    k.axes = {{"a", 3}, {"one", 1}, {"b", 7}, {"c", c, true}};
    k.registers = {{DType::kF32, true}};
    k.phases.push_back({{0, 1, 2, 3},
                        {Load(0, 0, {0, {{2, c * 3}, {3, 3}, {0, 1}}}),
                         Store(1, {0, {{0, 7 * c}, {2, c}, {3, 1}}}, 0)}});
    ExpectAsInterpreted(
        k, {Bytes(Ramp(21 * c, 1)), std::string(4 * 21 * c, '\0')});
  }
}

TEST(CpuKernelTest, StridedStoresReachEveryLane) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kU8,
                      DType::kBool, DType::kI64}) {
    Kernel k;
    k.name = "strided";
    k.lanes = 16;
    k.buffers = {{"x", dtype, 100}, {"y", dtype, 300, true}};
    k.axes = {{"i", 100, true}};
    k.registers = {{dtype, true}};
    k.phases.push_back(
        {{0}, {Load(0, 0, {99, {{0, -1}}}), Store(1, {2, {{0, 3}}}, 0)}});
    std::vector<double> values;
    for (int i = 0; i < 100; ++i) values.push_back(i);
    ExpectAsInterpreted(k, {ToBytes(dtype, values),
                            std::string(300 * ir::DTypeSize(dtype), '\1')});
  }
}

TEST(CpuKernelTest, UniformLoadsAndStoresInAVectorAxis) {
  // y[i] = x[i] * s[0] and z[r] = s[0] for two rows r.
  Kernel k;
  k.name = "uniform";
  k.lanes = 8;
  k.buffers = {{"x", DType::kF32, 40},
               {"s", DType::kF32, 1},
               {"y", DType::kF32, 40, true},
               {"z", DType::kF32, 40, true}};
  k.axes = {{"r", 2}, {"i", 20, true}};
  k.registers = {{DType::kF32, true}, {DType::kF32}, {DType::kF32, true}};
  k.phases.push_back(
      {{0, 1},
       {Load(0, 0, {0, {{0, 20}, {1, 1}}}), Load(1, 1, {}),
        Compute(ScalarOp::kMul, 2, {0, 1}), Store(2, {0, {{0, 20}, {1, 1}}}, 2),
        Store(3, {0, {{0, 20}, {1, 1}}}, 1)}});
  ExpectAsInterpreted(k, {Bytes(Ramp(40)), Bytes(std::vector<float>{1.5f}),
                          std::string(160, '\0'), std::string(160, '\0')});
}

// Sums, products, maxima and minima of rows with vector accumulators. Lanes
// beyond the extent stay neutral.
TEST(CpuKernelTest, ReductionsIgnoreMaskedLanes) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kI64,
                      DType::kU8, DType::kF16}) {
    for (ScalarOp op : {ScalarOp::kAdd, ScalarOp::kMaximum, ScalarOp::kMinimum,
                        ScalarOp::kMul}) {
      for (int64_t columns : {1, 5, 16, 37, 150}) {
        Kernel k;
        k.name = "rows";
        k.lanes = 16;
        k.contract = false;
        k.buffers = {{"x", dtype, 6 * columns}, {"y", dtype, 6, true}};
        k.axes = {{"r", 6}, {"c", columns, true}};
        k.registers = {{dtype, true}, {dtype, true}, {dtype}};
        k.phases.push_back(
            {{0},
             {Init(op, 0),
              Loop(1, {Load(1, 0, {0, {{0, columns}, {1, 1}}}),
                       Accumulate(op, 0, 1)}),
              ReduceLanes(op, 2, 0), Store(1, {0, {{0, 1}}}, 2)}});
        std::vector<double> x;
        for (int64_t i = 0; i < 6 * columns; ++i) {
          x.push_back(op == ScalarOp::kMul ? 1 + (i % 41 == 0)
                                           : static_cast<double>(i * 7 % 19));
        }
        ExpectAsInterpreted(
            k, {ToBytes(dtype, x), ToBytes(dtype, std::vector<double>(6))});
      }
    }
  }
}

// Sums columns with a serial loop inside the vector axis, then sums the result
// in a second phase of one task.
TEST(CpuKernelTest, PhasesSeeWhatEarlierOnesWrote) {
  constexpr int64_t kRows = 300, kColumns = 203;
  Kernel k;
  k.name = "two_phases";
  k.lanes = 16;
  k.contract = false;
  k.buffers = {{"x", DType::kF32, kRows * kColumns},
               {"scratch", DType::kF32, kColumns, true, true},
               {"y", DType::kF32, 1, true}};
  k.axes = {{"c", kColumns, true}, {"r", kRows}, {"d", kColumns}};
  k.registers = {
      {DType::kF32, true}, {DType::kF32, true}, {DType::kF32}, {DType::kF32}};
  k.phases.push_back({{0},
                      {Init(ScalarOp::kAdd, 0),
                       Loop(1, {Load(1, 0, {0, {{1, kColumns}, {0, 1}}}),
                                Accumulate(ScalarOp::kAdd, 0, 1)}),
                       Store(1, {0, {{0, 1}}}, 0)}});
  k.phases.push_back(
      {{},
       {Init(ScalarOp::kAdd, 2),
        Loop(2, {Load(3, 1, {0, {{2, 1}}}), Accumulate(ScalarOp::kAdd, 2, 3)}),
        Store(2, {}, 2)}});
  ExpectAsInterpreted(
      k, {Bytes(Ramp(kRows * kColumns)), std::string(4 * kColumns, '\0'),
          std::string(4, '\0')});
}

// y = x > 2 as a bitmask, then z = y ? x : -1.
TEST(CpuKernelTest, PackedBoolsAreOneBitAnElement) {
  for (int lanes : {8, 16, 32, 64}) {
    constexpr int64_t kN = 640;
    Kernel k;
    k.name = "packed";
    k.lanes = lanes;
    k.buffers = {{"x", DType::kF32, kN},
                 {"y", DType::kBool, kN, true, false, true},
                 {"z", DType::kF32, kN, true}};
    k.axes = {{"r", 5}, {"i", kN / 5, true}, {"j", kN, true}};
    k.registers = {{DType::kF32, true},  {DType::kF32},
                   {DType::kBool, true}, {DType::kBool, true},
                   {DType::kF32, true},  {DType::kF32}};
    const Index rows{0, {{0, kN / 5}, {1, 1}}};
    const Index all{0, {{2, 1}}};
    k.phases.push_back(
        {{0, 1},
         {Load(0, 0, rows), Constant(1, 2), Compute(ScalarOp::kGt, 2, {0, 1}),
          Store(1, rows, 2)}});
    k.phases.push_back(
        {{2},
         {Load(3, 1, all), Load(0, 0, all), Constant(5, -1),
          Compute(ScalarOp::kSelect, 4, {3, 0, 5}), Store(2, all, 4)}});
    const std::vector<std::string> buffers{
        Bytes(Ramp(kN)), std::string(kN / 8, '\0'), std::string(4 * kN, '\0')};
    EXPECT_EQ(Cpu::Get().Run(k, buffers), Cpu::Interpret(k, buffers)) << lanes;
  }
}

// x = x + 1 with one buffer for input and output.
TEST(CpuKernelTest, UpdatesInPlace) {
  Kernel k;
  k.name = "in_place";
  k.lanes = 16;
  k.buffers = {{"x", DType::kF32, 77, true}};
  k.axes = {{"i", 77, true}};
  k.registers = {{DType::kF32, true}, {DType::kF32}};
  k.phases.push_back(
      {{0},
       {Constant(1, 1), Load(0, 0, {0, {{0, 1}}}),
        Compute(ScalarOp::kAdd, 0, {0, 1}), Store(0, {0, {{0, 1}}}, 0)}});
  ExpectAsInterpreted(k, {Bytes(Ramp(77))});
}

TEST(CpuKernelTest, IndexValuesInEveryDtype) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kI64}) {
    Kernel k;
    k.name = "indices";
    k.lanes = 16;
    k.buffers = {{"y", dtype, 3 * 50, true}};
    k.axes = {{"r", 3}, {"c", 50, true}};
    k.registers = {{dtype, true}};
    k.phases.push_back({{0, 1},
                        {IndexValue(0, {-7, {{0, 1000}, {1, 2}}}),
                         Store(0, {0, {{0, 50}, {1, 1}}}, 0)}});
    ExpectAsInterpreted(k, {std::string(150 * ir::DTypeSize(dtype), '\0')});
  }
}

TEST(CpuKernelTest, RandomIsThePhiloxStream) {
  constexpr int64_t kKey = 0x123456789abcdef0, kStep = 77, kN = 1000;
  Kernel k;
  k.name = "random";
  k.lanes = 16;
  k.buffers = {{"key", DType::kI64, 1},
               {"step", DType::kI64, 1},
               {"y", DType::kF32, kN, true},
               {"z", DType::kF32, 1, true}};
  k.axes = {{"i", kN, true}};
  k.registers = {
      {DType::kI64}, {DType::kI64}, {DType::kF32, true}, {DType::kF32}};
  const Index index{3, {{0, 5}}};
  k.phases.push_back(
      {{0},
       {Load(0, 0, {}), Load(1, 1, {}), Random(2, 0, 1, 9, 4, index),
        Store(2, {0, {{0, 1}}}, 2)}});
  k.phases.push_back({{},
                      {Load(0, 0, {}), Load(1, 1, {}),
                       Random(3, 0, 1, 9, 4, {1234, {}}), Store(3, {}, 3)}});
  const auto buffers = Cpu::Get().Run(
      k, {Bytes(std::vector<int64_t>{kKey}), Bytes(std::vector<int64_t>{kStep}),
          std::string(4 * kN, '\0'), std::string(4, '\0')});
  const auto y = As<float>(buffers[2]);
  for (int64_t i = 0; i < kN; ++i) {
    ASSERT_EQ(y[i], RandomUniform(kKey, kStep, 9, 4, 3 + 5 * i)) << i;
  }
  EXPECT_EQ(As<float>(buffers[3])[0], RandomUniform(kKey, kStep, 9, 4, 1234));
}

// a*b+c with an inexact a*b: rounds once with FMA contraction, twice without.
TEST(CpuKernelTest, ContractionIsAsAsked) {
  Kernel k;
  k.name = "contract";
  k.lanes = 16;
  k.buffers = {{"x", DType::kF32, 3}, {"y", DType::kF32, 1, true}};
  k.registers = {{DType::kF32}, {DType::kF32}, {DType::kF32}, {DType::kF32}};
  k.phases.push_back({{},
                      {Load(0, 0, {0, {}}), Load(1, 0, {1, {}}),
                       Load(2, 0, {2, {}}), Compute(ScalarOp::kMul, 3, {0, 1}),
                       Compute(ScalarOp::kAdd, 3, {3, 2}), Store(1, {}, 3)}});
  const float a = 1 + 0x1p-20f;
  const std::vector<float> x{a, a, -1};
  for (bool contract : {true, false}) {
    k.contract = contract;
    const float y =
        As<float>(Cpu::Get().Run(k, {Bytes(x), std::string(4, '\0')})[1])[0];
    const volatile float product = a * a;
    EXPECT_EQ(y, contract ? std::fma(a, a, -1.0f) : product - 1) << contract;
  }
}

TEST(CpuKernelTest, EqualKernelsGiveEqualBytes) {
  Kernel renamed = AbsPlusOne(1000, 16, true);
  renamed.name = "another_name";
  renamed.buffers[0].name = "z";
  const auto& compiler = Cpu::Get().compiler();
  EXPECT_EQ(compiler.CompileKernel(renamed),
            compiler.CompileKernel(AbsPlusOne(1000, 16, true)));
  EXPECT_NE(compiler.CompileKernel(renamed),
            compiler.CompileKernel(AbsPlusOne(1001, 16, true)));
}

TEST(CpuKernelTest, ShowsItsLlvmIrAndAssembly) {
  const codegen::Kernel kernel = AbsPlusOne(1000, 16, true);
  const auto artifacts = Cpu::Get().compiler().KernelArtifacts(kernel);
  ASSERT_EQ(artifacts.size(), 2);
  EXPECT_EQ(artifacts[0].suffix, ".ll");
  EXPECT_THAT(artifacts[0].text,
              ::testing::StartsWith("; " + KernelStamp(kernel) + "\n"));
  EXPECT_THAT(artifacts[0].text, ::testing::HasSubstr("fadd"));
  EXPECT_EQ(artifacts[1].suffix, ".s");
  EXPECT_THAT(artifacts[1].text, ::testing::HasSubstr("fusor_p0:"));
  EXPECT_THAT(artifacts[1].text, ::testing::HasSubstr("vaddps"));
}

Kernel ColumnSums(int64_t rows, int64_t columns, int lanes) {
  Kernel k;
  k.name = "column_sums";
  k.lanes = lanes;
  k.buffers = {{"x", DType::kF32, rows * columns},
               {"y", DType::kF32, columns, true}};
  k.axes = {{"i", columns, true}, {"j", rows}};
  k.registers = {{DType::kF32, true}, {DType::kF32, true}};
  k.phases.push_back({{0},
                      {Init(ScalarOp::kAdd, 0),
                       Loop(1, {Load(1, 0, {0, {{0, 1}, {1, columns}}}),
                                Accumulate(ScalarOp::kAdd, 0, 1)}),
                       Store(1, {0, {{0, 1}}}, 0)}});
  return k;
}

// Also of several hardware vectors, the last of them partly or wholly masked.
TEST(CpuKernelTest, RowsOfMaskedVectors) {
  for (const int64_t columns : {72, 100, 24}) {
    ExpectAsInterpreted(ColumnSums(50, columns, 64),
                        {Bytes(Ramp(50 * columns)), Bytes(Ramp(columns))});
  }
}

// Each iteration accesses another cache line or half of one: as a vector, or of
// another row. The last prefetches are beyond the buffers.
TEST(CpuKernelTest, InnermostLoopsPrefetch) {
  const auto prefetches = [](const Kernel& kernel) {
    const std::string text =
        Cpu::Get().compiler().KernelArtifacts(kernel)[0].text;
    int found = 0;
    for (size_t at = 0;
         (at = text.find("call void @llvm.prefetch", at)) != std::string::npos;
         ++at) {
      ++found;
    }
    return found;
  };
  EXPECT_EQ(prefetches(AbsPlusOne(1600, 16, false)), 2);
  EXPECT_EQ(prefetches(AbsPlusOne(800, 8, false)), 2);   // half a line
  EXPECT_EQ(prefetches(AbsPlusOne(400, 4, false)), 0);   // a quarter
  EXPECT_EQ(prefetches(AbsPlusOne(64, 16, false)), 0);   // unrolled
  EXPECT_EQ(prefetches(AbsPlusOne(1600, 16, true)), 0);  // no loop
  const Kernel k = ColumnSums(50, 32, 32);
  EXPECT_EQ(prefetches(k), 2);  // two lines of a row
  ExpectAsInterpreted(k, {Bytes(Ramp(50 * 32)), Bytes(Ramp(32))});
}

}  // namespace
}  // namespace fusor::test
