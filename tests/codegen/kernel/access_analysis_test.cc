#include "codegen/kernel/access_analysis.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "codegen/kernel/kernel_ir.h"
#include "codegen/plan/verify_plan.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/kernel_statements.h"
#include "tests/testing/numeric.h"
#include "tests/testing/plan_runner.h"
#include "tests/testing/random_graph.h"
#include "tests/testing/update_graph.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::ScalarOp;
using test::Load;
using test::Loop;
using test::Store;

constexpr int kFrom = 0;
constexpr int kTo = 1;

// A kernel from one buffer of rows * columns elements to another.
Kernel Square(int64_t rows, int64_t columns) {
  Kernel k;
  k.name = "square";
  k.buffers = {{"from", DType::kF32, rows * columns},
               {"to", DType::kF32, rows * columns, true}};
  k.axes = {{"r", rows}, {"c", columns}};
  k.registers = {{DType::kF32}, {DType::kF32}};
  return k;
}

Index At(int64_t row_step, int64_t column_step) {
  return {0, {{0, row_step}, {1, column_step}}};
}

bool Derive(Kernel kernel) {
  Verify(kernel);
  return MayOverwrite(kernel, kFrom, kTo);
}

TEST(MayOverwrite, EachElementLoadedByTheTaskThatStoresIt) {
  Kernel k = Square(8, 8);
  k.phases = {{{0, 1}, {Load(0, kFrom, At(8, 1)), Store(kTo, At(8, 1), 0)}}};
  EXPECT_TRUE(Derive(k));
}

TEST(MayOverwrite, NotElementsThatAnotherTaskLoads) {
  Kernel k = Square(8, 8);
  k.phases = {{{0, 1}, {Load(0, kFrom, At(1, 8)), Store(kTo, At(8, 1), 0)}}};
  EXPECT_FALSE(Derive(k));
}

TEST(MayOverwrite, NotElementsLoadedAgainAfterTheStore) {
  Kernel k = Square(8, 8);
  k.phases = {{{0, 1},
               {Load(0, kFrom, At(8, 1)), Store(kTo, At(8, 1), 0),
                Load(1, kFrom, At(8, 1))}}};
  EXPECT_FALSE(Derive(k));
}

TEST(MayOverwrite, NotElementsLoadedInALaterPhase) {
  Kernel k = Square(8, 8);
  k.phases = {{{0, 1}, {Load(0, kFrom, At(8, 1)), Store(kTo, At(8, 1), 0)}},
              {{0, 1}, {Load(0, kFrom, At(8, 1))}}};
  EXPECT_FALSE(Derive(k));
  std::swap(k.phases[0], k.phases[1]);
  EXPECT_TRUE(Derive(k));
}

TEST(MayOverwrite, NotElementsLoadedInLaterIterations) {
  // to[r] = from[r], repeatedly.
  Kernel k = Square(8, 8);
  k.buffers = {{"from", DType::kF32, 8}, {"to", DType::kF32, 8, true}};
  const Index row{0, {{0, 1}}};
  k.phases = {{{0}, {Loop(1, {Load(0, kFrom, row), Store(kTo, row, 0)})}}};
  EXPECT_FALSE(Derive(k));
}

TEST(MayOverwrite, ASweepAfterTheOneThatOnlyLoads) {
  Kernel k = Square(8, 8);
  k.phases = {{{0},
               {Loop(1, {Load(0, kFrom, At(8, 1))}),
                Loop(1, {Load(1, kFrom, At(8, 1)), Store(kTo, At(8, 1), 1)})}}};
  EXPECT_TRUE(Derive(k));
  std::swap(k.phases[0].body[0], k.phases[0].body[1]);
  EXPECT_FALSE(Derive(k));
}

// Copies one row after another. Loads each after the previous store.
TEST(MayOverwrite, ElementsBesideThoseThatAreStored) {
  Kernel k = Square(8, 8);
  k.axes = {{"r", 4}, {"c", 8}};
  const auto at = [](int64_t offset) {
    return Index{offset, {{0, 16}, {1, 1}}};
  };
  k.phases = {{{0, 1},
               {Load(0, kFrom, at(0)), Store(kTo, at(0), 0),
                Load(1, kFrom, at(8)), Store(kTo, at(8), 1)}}};
  EXPECT_TRUE(Derive(k));
  // Loads from rows of other tasks.
  k.phases[0].body[2] = Load(1, kFrom, at(4));
  EXPECT_FALSE(MayOverwrite(k, kFrom, kTo));
}

TEST(MayOverwrite, PartsOfTheBufferPhaseByPhase) {
  Kernel k = Square(8, 8);
  k.axes = {{"a", 32}, {"b", 32}};
  const auto at = [](int axis, int64_t offset) {
    return Index{offset, {{axis, 1}}};
  };
  k.phases = {{{0}, {Load(0, kFrom, at(0, 0)), Store(kTo, at(0, 0), 0)}},
              {{1}, {Load(0, kFrom, at(1, 32)), Store(kTo, at(1, 32), 0)}}};
  EXPECT_TRUE(Derive(k));
  k.phases[1].body[0] = Load(0, kFrom, at(1, 31));
  EXPECT_FALSE(Derive(k));
}

TEST(MayOverwrite, OnlyBuffersOfOneSize) {
  Kernel k = Square(8, 8);
  k.phases = {{{0, 1}, {Load(0, kFrom, At(8, 1)), Store(kTo, At(8, 1), 0)}}};
  k.buffers[kTo].dtype = DType::kF64;
  EXPECT_FALSE(Derive(k));
  k.buffers[kTo].dtype = DType::kI32;
  EXPECT_TRUE(Derive(k));
  k.buffers[kTo].scratch = true;
  EXPECT_FALSE(Derive(k));
}

// Returns the kernel's results as bytes. Buffer `result` shares the memory of
// buffer `operand`, unless that is -1.
std::vector<std::vector<uint8_t>> Results(const Kernel& kernel, int operand,
                                          int result) {
  std::vector<std::vector<uint8_t>> memory;
  std::vector<void*> pointers;
  for (const KernelBuffer& buffer : kernel.buffers) {
    const ir::TensorType type{buffer.dtype, {buffer.elements}, {}};
    memory.push_back(
        ir::TensorBytes(test::RandomTensor(type, memory.size(), 0.5, 1.5)));
  }
  for (auto& bytes : memory) pointers.push_back(bytes.data());
  if (result >= 0) pointers[result] = pointers[operand];
  InterpretKernel(kernel, pointers.data());
  std::vector<std::vector<uint8_t>> results;
  for (size_t b = 0; b < memory.size(); ++b) {
    if (!kernel.buffers[b].written || kernel.buffers[b].scratch) continue;
    results.push_back(static_cast<int>(b) == result ? memory[operand]
                                                    : memory[b]);
  }
  return results;
}

// The analysis derives every pair that lowering offers from the kernel. Reusing
// buffers by these pairs changes no bit. A plan with other pairs is rejected.
TEST(MayOverwrite, AgreesWithTheKernelsOfRandomGraphs) {
  const test::FakeCompiler compiler;
  int derived = 0;
  int rejected = 0;
  for (uint64_t seed = 0; seed < 80 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const auto graph =
        seed % 8 == 7
            ? test::UpdateGraph(static_cast<test::Gradients>(seed / 8 % 3))
            : test::RandomGraph(seed, {.inputs = 4,
                                       .nodes = 30,
                                       .max_rank = 3,
                                       .layouts = true,
                                       .states = true});
    test::Planned planned = test::FuseAndPlan(*graph, compiler);
    for (CompiledKernel& compiled : planned.plan.kernels) {
      const Kernel& kernel = compiled.kernel;
      const auto buffers = static_cast<int>(kernel.buffers.size());
      for (int operand = 0; operand < buffers; ++operand) {
        for (int result = 0; result < buffers; ++result) {
          const InPlace pair{operand, result};
          const bool claimed = std::count(compiled.in_place.begin(),
                                          compiled.in_place.end(), pair) > 0;
          const bool may = MayOverwrite(kernel, operand, result);
          EXPECT_TRUE(may || !claimed) << Print(kernel);
          if (may) {
            ++derived;
            EXPECT_EQ(Results(kernel, operand, result), Results(kernel, -1, -1))
                << operand << " " << result << Print(kernel);
            continue;
          }
          if (!kernel.buffers[result].written) continue;
          ++rejected;
          compiled.in_place.push_back(pair);
          EXPECT_THROW(VerifyPlan(planned.plan), Error);
          compiled.in_place.pop_back();
        }
      }
    }
  }
  EXPECT_GT(derived, 300);
  EXPECT_GT(rejected, 1000);
}

}  // namespace
}  // namespace fusor::codegen
