// Compiles and runs kernels with contractions, and compares them with the
// kernel interpreter.

#include "passes/fusion/contraction.h"

#include <gtest/gtest.h>

#include "codegen/kernel/kernel_builder.h"
#include "codegen/lower/lower.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/io/printer.h"
#include "tests/runtime/cpu/cpu_fixture.h"
#include "tests/testing/numeric.h"
#include "tests/testing/random_contraction.h"
#include "tests/testing/random_graph.h"

namespace fusor::test {
namespace {

using codegen::BufferUse;
using codegen::Kernel;
using codegen::KernelBuilder;
using ir::DType;

// A tile of rows x groups vectors of `c` = a x b + the row's index, where
// lanes beyond `columns` are masked.
Kernel TileProduct(DType dtype, int64_t rows, int64_t groups, int64_t columns,
                   int64_t summed) {
  ir::Target target = Cpu::Get().compiler().target();
  KernelBuilder b("tile_product", target);
  const int64_t width = groups * columns;
  const int a = b.AddBuffer("a", dtype, rows * summed, BufferUse::kRead);
  const int x = b.AddBuffer("b", dtype, summed * width, BufferUse::kRead);
  const int c = b.AddBuffer("c", dtype, rows * width, BufferUse::kWritten);
  const int row = b.AddAxis("row", rows);
  const int group = b.AddAxis("group", groups);
  const int lane = b.AddAxis("lane", columns, codegen::AxisKind::kVector);
  const int k = b.AddAxis("k", summed);
  {
    const auto phase = b.BeginPhase({});
    const auto lanes = b.BeginLoop(lane);
    const int sum = b.Tile(dtype, {row, group}, true);
    const int scalar = b.Tile(dtype, {row}, false);
    const int vector = b.Tile(dtype, {group}, true);
    b.ClearTile(sum);
    {
      const auto contract = b.BeginContract(k, sum, scalar, vector);
      {
        const auto loop = b.BeginLoop(row);
        b.Assign(scalar, b.Load(a, {0, {{row, summed}, {k, 1}}}));
      }
      const auto loop = b.BeginLoop(group);
      b.Assign(vector,
               b.Load(x, {0, {{k, width}, {group, columns}, {lane, 1}}}));
    }
    const auto groups_loop = b.BeginLoop(group);
    const auto rows_loop = b.BeginLoop(row);
    const int index = b.Define(
        {.kind = codegen::StmtKind::kIndexValue, .index = {0, {{row, 1}}}},
        dtype);
    b.Store(c, {0, {{row, width}, {group, columns}, {lane, 1}}},
            b.Compute(ir::ScalarOp::kAdd, dtype, {sum, index}));
  }
  return std::move(b).Build();
}

// Small integers: every dtype adds them exactly.
TEST(CpuContraction, TilesOfAllDTypesAreExact) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16,
                            DType::kI32, DType::kI64}) {
    for (const int64_t columns : {1, 5, 8}) {
      for (const int64_t summed : {1, 7, 8, 19}) {
        const Kernel kernel = TileProduct(dtype, 3, 2, columns, summed);
        std::vector<std::string> buffers;
        for (const codegen::KernelBuffer& buffer : kernel.buffers) {
          std::vector<double> values;
          for (int64_t i = 0; i < buffer.elements; ++i) {
            values.push_back(static_cast<double>(i * 7 % 5 - 2));
          }
          buffers.push_back(ToBytes(dtype, values));
        }
        EXPECT_EQ(FromBytes(dtype, Cpu::Get().Run(kernel, buffers)[2]),
                  FromBytes(dtype, Cpu::Interpret(kernel, buffers)[2]))
            << Print(kernel);
      }
    }
  }
}

TEST(CpuContraction, RandomContractionsAgreeWithTheInterpreter) {
  for (uint64_t seed = 1000; seed < 1060 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const auto body = RandomContraction(seed);
    std::string reason;
    if (!passes::AnalyzeContraction(*body, &reason).has_value()) continue;
    const codegen::LoweredKernel lowered =
        codegen::LowerContraction(*body, Cpu::Get().compiler().target(), false);
    const auto inputs = RandomInputs(*body, seed);
    std::vector<std::string> buffers;
    for (const ir::Tensor& input : inputs) {
      const std::vector<uint8_t> bytes = ir::TensorBytes(input);
      buffers.emplace_back(bytes.begin(), bytes.end());
    }
    for (size_t b = inputs.size(); b < lowered.kernel.buffers.size(); ++b) {
      buffers.emplace_back(lowered.kernel.buffers[b].num_bytes(), '\0');
    }
    const auto actual = Cpu::Get().Run(lowered.kernel, buffers);
    const auto expected = Interpret(*body, inputs, ir::EvalMode::kTyped);
    for (size_t i = 0; i < expected.size(); ++i) {
      const ir::Tensor result =
          ir::LoadTensor(expected[i].type, actual[inputs.size() + i].data());
      EXPECT_LT(MaxRelativeError(result, expected[i]),
                ContractionTolerance(*body))
          << "output " << i << "\n"
          << ir::Print(*body) << Print(lowered.kernel);
    }
  }
}

}  // namespace
}  // namespace fusor::test
