// Kernels that access elements by index: gather, scatter_add and cumsum.
// Compares them with the interpreter, and their emulated GPU text with the
// kernel interpreter.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "codegen/kernel/kernel_builder.h"
#include "codegen/lower/lower.h"
#include "ir/builder.h"
#include "ir/io/printer.h"
#include "ir/support/error.h"
#include "ir/verifier.h"
#include "passes/passes.h"
#include "tests/fakes/emulated_kernels.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/kernel_runner.h"
#include "tests/testing/numeric.h"

namespace fusor::codegen {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Shape;
using ir::Tensor;
using ir::TensorType;
using ir::Value;
using Values = std::vector<Value*>;

// Compares the fused graph's kernels for both targets with the interpreter.
// Checks that there are `fusions` of them. Returns those for the GPU.
std::vector<CompiledKernel> ExpectAgree(
    const std::vector<Tensor>& inputs, int fusions,
    const std::function<Value*(Builder&, const Values&)>& build) {
  Graph graph;
  Builder b(graph);
  Values operands;
  for (const Tensor& input : inputs) {
    operands.push_back(graph.AddInput(input.type, ir::InputRole::kData, "x"));
  }
  graph.AddOutput(build(b, operands), "y");
  const auto expected = ir::Interpret(graph, inputs, ir::EvalMode::kTyped);
  const test::BareTarget queries;
  passes::PassContext context(queries, {});
  passes::Simplify(graph, context);
  passes::Fuse(graph, context);
  ir::Verify(graph);
  std::vector<CompiledKernel> kernels;
  for (const char* name : {"cpu-avx512", "nvidia-h200"}) {
    const ir::Target target = ir::WithThreads(ir::FindTarget(name), 4);
    const auto actual = test::RunWithKernels(graph, inputs, target);
    EXPECT_TRUE(test::AllClose(actual[0], expected[0], 1e-5, 1e-5))
        << name << Print(graph);
    for (const auto& node : graph.nodes()) {
      if (node->body() == nullptr || !target.simt) continue;
      kernels.push_back({LowerFusion(*node, target).kernel});
    }
  }
  EXPECT_EQ(kernels.size(), static_cast<size_t>(fusions)) << Print(graph);
  return kernels;
}

void ExpectEmulated(const std::vector<CompiledKernel>& kernels) {
  for (const std::string& problem : test::CompareWithInterpreter(kernels, 1)) {
    ADD_FAILURE() << problem;
  }
}

Tensor Indices(const Shape& shape, double low, double high) {
  return test::RandomTensor({DType::kI32, shape, {}}, 7, low, high);
}

// One kernel broadcasts the index and scales the elements. Indices from -2 on,
// and some beyond the table, are out of range.
TEST(IndexedKernel, LooksUpRows) {
  std::vector<CompiledKernel> kernels;
  for (const DType dtype : ir::kAllDTypes) {
    for (const int64_t width : {1, 5, 16, 40}) {
      const auto found = ExpectAgree(
          {test::RandomTensor({dtype, {9, width}, {}}, 1, 0, 5),
           Indices({3, 4}, -2, 11)},
          1, [](Builder& b, const Values& x) {
            Value* rows = b.Take(x[0], x[1], 0);
            return rows->type().dtype == DType::kBool ? b.Not(rows)
                                                      : b.Plus(rows, rows);
          });
      kernels.insert(kernels.end(), found.begin(), found.end());
    }
  }
  ExpectEmulated(kernels);
}

// An indexed dimension that is part of a tile is copied first.
TEST(IndexedKernel, ReadsTensorsOfAnyLayout) {
  for (const char* layout : {"abcd", "acdb", "aBcd16b", "dcba"}) {
    const TensorType type{DType::kF32, {2, 32, 5, 6}, ir::ParseLayout(layout)};
    for (const int64_t dim : {1, 2, 3}) {
      ExpectAgree(
          {test::RandomTensor(type, 1), Indices({8}, 0, 5)}, 1,
          [&](Builder& b, const Values& x) { return b.Take(x[0], x[1], dim); });
    }
  }
}

// A different index per lane, two indexed dimensions, an index computed in the
// kernel, and a reduction of the elements read.
TEST(IndexedKernel, ReadsElementsByComputedIndices) {
  const Tensor x = test::RandomTensor({DType::kF32, {6, 7, 33}, {}}, 1);
  auto kernels = ExpectAgree(
      {x, Indices({6, 7, 20}, 0, 33)}, 1,
      [](Builder& b, const Values& v) { return b.TakeAlong(v[0], v[1], 2); });
  const auto more = ExpectAgree(
      {x, Indices({40, 7}, 0, 6)}, 1, [](Builder& b, const Values& v) {
        Value* column =
            b.Remainder(b.Times(b.Iota(DType::kI32, {40, 7}, 0), 5.0), 34.0);
        Value* read = b.Gather(v[0], {v[1], column}, {-1, 1, -1});
        return b.ReduceMax(read, {0});
      });
  kernels.insert(kernels.end(), more.begin(), more.end());
  ExpectEmulated(kernels);
}

// A gather needs its table in memory.
TEST(IndexedKernel, DoesNotComputeTheTableThatItReads) {
  ExpectAgree(
      {test::RandomTensor({DType::kF32, {9, 16}, {}}, 1), Indices({4}, 0, 9)},
      2,
      [](Builder& b, const Values& x) { return b.Take(b.Exp(x[0]), x[1], 0); });
}

// A result must not be stored over an operand that is read by index.
TEST(IndexedKernel, IsNotInPlaceWithItsTable) {
  Graph graph;
  Builder b(graph);
  Value* x =
      graph.AddInput({DType::kF32, {8, 16}, {}}, ir::InputRole::kData, "x");
  Value* index =
      graph.AddInput({DType::kI32, {8}, {}}, ir::InputRole::kData, "i");
  graph.AddOutput(b.Plus(b.Take(x, index, 0), x), "y");
  const test::BareTarget queries;
  passes::PassContext context(queries, {});
  passes::Fuse(graph, context);
  ASSERT_EQ(graph.nodes().size(), 1u);
  const LoweredKernel lowered =
      LowerFusion(*graph.nodes()[0], ir::FindTarget("cpu-avx2"));
  EXPECT_TRUE(lowered.in_place.empty());
}

TEST(ScatterAddKernel, AddsRowsElementsAndScalars) {
  std::vector<CompiledKernel> kernels;
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16,
                            DType::kI32, DType::kI64, DType::kU8}) {
    // Multiples of 1/4, so that sums are exact in any order.
    const auto updates = [&](const Shape& shape) {
      Tensor tensor = test::RandomTensor({DType::kI32, shape, {}}, 3, 0, 9);
      tensor.type.dtype = dtype;
      return tensor;
    };
    for (const auto& found :
         {ExpectAgree({updates({12, 40}), Indices({12}, -1, 6)}, 1,
                      [](Builder&b, const Values&x) {
                        return b.ScatterAdd(x[0], {b.Reshape(x[1], {12, 1})},
                                            {5, 40}, {-1, 1});
                      }),
          ExpectAgree({updates({6, 20}), Indices({6, 20}, -1, 9)}, 1,
                      [](Builder&b, const Values&x) {
                        return b.ScatterAdd(x[0], {x[1]}, {6, 8}, {0, -1});
                      }),
          // Large enough that tasks share the result by ranges of the index.
          ExpectAgree(
              {updates({130, 130}), Indices({130, 130}, 0, 5)}, 1,
              [](Builder&b, const Values&x) {
                return b.ScatterAdd(x[0], {x[1], x[1]}, {4, 6}, {-1, -1});
              })}) {
      kernels.insert(kernels.end(), found.begin(), found.end());
    }
  }
  ExpectEmulated(kernels);
}

TEST(CumulativeSumKernel, AddsAlongEveryDimension) {
  std::vector<CompiledKernel> kernels;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI64}) {
    for (const int64_t dim : {0, 1, 2}) {
      for (const bool flag : {false, true}) {
        Tensor x = test::RandomTensor({DType::kI32, {5, 7, 20}, {}}, 1, -2, 3);
        x.type.dtype = dtype;
        const auto found =
            ExpectAgree({x}, 1, [&](Builder& b, const Values& v) {
              return b.CumulativeSum(v[0], dim, flag, dim == 1);
            });
        kernels.insert(kernels.end(), found.begin(), found.end());
      }
    }
  }
  const Tensor row = test::RandomTensor({DType::kF32, {1, 100}, {}}, 1);
  const auto found = ExpectAgree({row}, 1, [](Builder& b, const Values& v) {
    return b.CumulativeSum(v[0], 1);
  });
  kernels.insert(kernels.end(), found.begin(), found.end());
  ExpectEmulated(kernels);
}

// --- The verifier ------------------------------------------------------------

Kernel GatherOf(int64_t extent, DType index) {
  KernelBuilder builder("k", ir::FindTarget("cpu-avx2"));
  const int table =
      builder.AddBuffer("table", DType::kF32, 40, BufferUse::kRead);
  const int at = builder.AddBuffer("at", index, 8, BufferUse::kRead);
  const int to = builder.AddBuffer("to", DType::kF32, 8, BufferUse::kWritten);
  const int axis = builder.AddAxis("i", 8, AxisKind::kVector);
  {
    const auto phase = builder.BeginPhase({axis});
    const int i = builder.Load(at, {0, {{axis, 1}}});
    builder.Store(to, {0, {{axis, 1}}},
                  builder.Gather(table, {0, {}}, {{i, 4, extent}}));
  }
  return std::move(builder).Build();
}

TEST(IndexedKernel, StaysInsideItsBuffer) {
  Verify(GatherOf(10, DType::kI32));
  EXPECT_THROW(Verify(GatherOf(11, DType::kI32)), Error);
  EXPECT_THROW(Verify(GatherOf(10, DType::kF32)), Error);
}

Kernel ScatterOf(bool owned, bool filled) {
  KernelBuilder builder("k", ir::FindTarget("cpu-avx2"));
  const int at = builder.AddBuffer("at", DType::kI32, 8, BufferUse::kRead);
  const int to = builder.AddBuffer("to", DType::kF32, 40, BufferUse::kWritten);
  const int all = builder.AddAxis("all", 40, AxisKind::kVector);
  const int axis = builder.AddAxis("i", 8);
  if (filled) {
    const auto phase = builder.BeginPhase({all});
    builder.Store(to, {0, {{all, 1}}}, builder.Constant(DType::kF32, 0));
  }
  {
    const auto phase = builder.BeginPhase({axis});
    const int i = builder.Load(at, {0, {{axis, 1}}});
    builder.ScatterAdd(to, owned ? Index{0, {{axis, 1}}} : Index{}, {{i, 8, 5}},
                       builder.Constant(DType::kF32, 1));
  }
  return std::move(builder).Build();
}

TEST(ScatterAddKernel, IsVerified) {
  Verify(ScatterOf(true, true));
  EXPECT_THROW(Verify(ScatterOf(false, true)), Error);  // tasks may conflict
  EXPECT_THROW(Verify(ScatterOf(true, false)), Error);  // adds to garbage
}

}  // namespace
}  // namespace fusor::codegen
