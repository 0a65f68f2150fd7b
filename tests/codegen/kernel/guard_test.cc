// The statement kGuard: text, values, and the proofs of kernels whose tiles
// extend beyond a tensor.

#include <gmock/gmock.h>

#include <functional>
#include <numeric>
#include <vector>

#include "codegen/cuda/cuda_printer.h"
#include "codegen/kernel/access_analysis.h"
#include "codegen/kernel/kernel_builder.h"
#include "ir/support/error.h"
#include "tests/fakes/emulated_gpu.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kInput = 0, kPadded = 1, kResult = 2;  // buffers
constexpr int64_t kRows = 13;
constexpr int64_t kTileRows = 8, kTileColumns = 16;
constexpr int64_t kPaddedRows = 16, kPaddedColumns = 32;
// Axes of the phase, and its loop.
constexpr int kRowTile = 0, kColumnTile = 1, kRow = 2, kLane = 3;

// padded[16, 32] = input[13, columns] with zeros around it, result[13, columns]
// = 2 * input, in blocks of 8 rows and 16 columns.
Kernel PaddingKernel(int64_t columns) {
  KernelBuilder b("padding", ir::FindTarget("nvidia-h200"));
  b.SetLanes(kTileColumns, 4);
  b.AddBuffer("input", DType::kF32, kRows * columns, BufferUse::kRead);
  b.AddBuffer("padded", DType::kF32, kPaddedRows * kPaddedColumns,
              BufferUse::kWritten);
  b.AddBuffer("result", DType::kF32, kRows * columns, BufferUse::kWritten);
  b.AddAxis("row_tile", kPaddedRows / kTileRows);
  b.AddAxis("column_tile", kPaddedColumns / kTileColumns);
  b.AddAxis("row", kTileRows, AxisKind::kBlock);
  b.AddAxis("lane", kTileColumns, AxisKind::kVector);
  const auto index = [](int64_t stride) -> Index {
    return {0,
            {{kRowTile, kTileRows * stride},
             {kColumnTile, kTileColumns},
             {kRow, stride},
             {kLane, 1}}};
  };
  const std::vector<Bound> bounds{
      {{0, {{kRowTile, kTileRows}, {kRow, 1}}}, kRows},
      {{0, {{kColumnTile, kTileColumns}, {kLane, 1}}}, columns}};
  {
    const auto phase = b.BeginPhase({kRowTile, kColumnTile, kRow});
    const auto lanes = b.BeginLoop(kLane);
    const int value =
        b.Guarded(bounds, [&] { return b.Load(kInput, index(columns)); });
    b.Store(kPadded, index(kPaddedColumns), value);
    const auto guard = b.BeginGuard(bounds);
    b.Store(kResult, index(columns),
            b.Compute(ir::ScalarOp::kAdd, DType::kF32, {value, value}));
  }
  return std::move(b).Build();
}

// The guard around the load, and the one around the store.
Stmt& First(Kernel& kernel) { return kernel.phases[0].body[0].body[0]; }
Stmt& Second(Kernel& kernel) { return kernel.phases[0].body[0].body.back(); }

void ExpectRejected(const std::function<void(Kernel&)>& damage,
                    const std::string& message) {
  Kernel kernel = PaddingKernel(20);
  damage(kernel);
  EXPECT_THAT([&] { Verify(kernel); },
              testing::ThrowsMessage<Error>(HasSubstr(message)))
      << Print(kernel);
}

TEST(Guard, HasText) {
  EXPECT_THAT(Print(PaddingKernel(20)),
              HasSubstr("r1 = guard 0 + 8*a0 + 1*a2 < 13, 0 + 16*a1 + 1*a3 < "
                        "20: r0:\n"));
}

// With 18 columns, a thread has lanes for which the bound holds and others.
TEST(Guard, LeavesOutWhatIsOutside) {
  for (const int64_t columns : {20, 18}) {
    SCOPED_TRACE(columns);
    const Kernel kernel = PaddingKernel(columns);
    Verify(kernel);
    CheckResults(kernel);
    std::vector<float> input(kRows * columns);
    std::iota(input.begin(), input.end(), 1.0F);
    std::vector<float> expected(kPaddedRows * kPaddedColumns);
    std::vector<float> doubled;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        const float value = input[row * columns + column];
        expected[row * kPaddedColumns + column] = value;
        doubled.push_back(2 * value);
      }
    }
    std::vector<float> padded(expected.size(), -1), result(input.size(), -1);
    void* const buffers[] = {input.data(), padded.data(), result.data()};
    InterpretKernel(kernel, buffers);
    EXPECT_EQ(padded, expected);
    EXPECT_EQ(result, doubled);

    std::fill(padded.begin(), padded.end(), -1);
    std::fill(result.begin(), result.end(), -1);
    const auto bytes = [](const auto& v) {
      return static_cast<int64_t>(v.size() * sizeof(v[0]));
    };
    const std::vector<test::EmulatedBuffer> emulated{
        {input.data(), bytes(input), false, true},
        {padded.data(), bytes(padded), true, false},
        {result.data(), bytes(result), true, false}};
    const std::string text = PrintCuda(kernel);
    EXPECT_EQ(test::EmulatedModule(std::span(&text, 1))
                  .Run(0, CudaLaunches(kernel), emulated),
              "");
    EXPECT_EQ(padded, expected);
    EXPECT_EQ(result, doubled);
  }
}

// Threads whose lanes are all inside or all outside need no masks.
TEST(Guard, IsABranchForWholeThreads) {
  EXPECT_THAT(PrintCuda(PaddingKernel(20)), Not(HasSubstr("active")));
  EXPECT_THAT(PrintCuda(PaddingKernel(18)), HasSubstr("active"));
}

TEST(Guard, KeepsAccessesInside) {
  Verify(PaddingKernel(20));
  ExpectRejected([](Kernel& k) { First(k).bounds.pop_back(); },
                 "index of input runs from 0 to 271 of 260 elements");
  ExpectRejected([](Kernel& k) { ++First(k).bounds[0].extent; },
                 "index of input runs from 0 to 279 of 260 elements");
}

// Without the bound of columns, tiles of columns meet in the result.
TEST(Guard, KeepsTasksApart) {
  ExpectRejected(
      [](Kernel& k) {
        Second(k).bounds[1].extent = 21;
        Second(k).bounds[0].extent = 12;
      },
      "several tasks of a phase meet in result");
}

TEST(Guard, ResultsMustBeComplete) {
  Kernel kernel = PaddingKernel(20);
  --Second(kernel).bounds[0].extent;
  Verify(kernel);
  EXPECT_THAT(
      [&] { CheckResults(kernel); },
      testing::ThrowsMessage<Error>(HasSubstr("result[240] is never stored")));
}

// Guards within guards leave out more.
TEST(Guard, ResultsOfNestedGuardsMustBeComplete) {
  Kernel kernel = PaddingKernel(20);
  Stmt inner = Second(kernel);
  inner.bounds = {inner.bounds[0]};
  --inner.bounds[0].extent;
  Second(kernel).body = {inner};
  Verify(kernel);
  EXPECT_THAT(
      [&] { CheckResults(kernel); },
      testing::ThrowsMessage<Error>(HasSubstr("result[240] is never stored")));
}

// A thread loads from scratch memory what it has stored, in the same guard.
TEST(Guard, ScratchMustBeStoredBeforeItIsLoaded) {
  Kernel kernel = PaddingKernel(20);
  kernel.buffers[kResult].scratch = true;
  Stmt& store = Second(kernel).body.back();
  Stmt load = store;
  load.kind = StmtKind::kLoad;
  load.dst = 0;
  load.src = {-1, -1, -1};
  Second(kernel).body.push_back(load);
  Verify(kernel);
  Stmt fewer = Second(kernel);
  fewer.body.pop_back();
  fewer.bounds.pop_back();
  fewer.bounds[0].extent = 5;
  Second(kernel).body = {fewer, load};
  EXPECT_THAT([&] { Verify(kernel); },
              testing::ThrowsMessage<Error>(
                  HasSubstr("result[0] has not been stored yet")));
}

TEST(Guard, BoundsAreOfOneToOneIndices) {
  ExpectRejected(
      [](Kernel& k) { First(k).bounds[0].index.terms[0].coefficient = 7; },
      "an index with repeated values");
  ExpectRejected([](Kernel& k) { First(k).bounds[0].extent = 0; },
                 "or an empty range");
  ExpectRejected([](Kernel& k) { First(k).bounds.clear(); }, "no bounds");
}

TEST(Guard, RejectsWhatAllThreadsMustExecute) {
  ExpectRejected(
      [](Kernel& k) {
        Stmt sum{.kind = StmtKind::kReduceBlock,
                 .dst = 2,
                 .op = ir::ScalarOp::kAdd,
                 .src = {1, -1, -1}};
        Second(k).body.insert(Second(k).body.begin(), sum);
      },
      "inside a guard");
  ExpectRejected(
      [](Kernel& k) {
        std::erase_if(Second(k).body.back().index.terms,
                      [](const Index::Term& t) { return t.axis == kRow; });
      },
      "one thread stores inside a guard");
}

TEST(Guard, RejectsMatrices) {
  ExpectRejected(
      [](Kernel& k) {
        k.registers.push_back({DType::kF32});
        k.registers.back().rows = k.registers.back().columns = 16;
        const auto matrix = static_cast<int>(k.registers.size()) - 1;
        Stmt guard{.kind = StmtKind::kGuard, .bounds = First(k).bounds};
        guard.bounds.pop_back();
        guard.body = {
            {.kind = StmtKind::kInit, .dst = matrix, .op = ir::ScalarOp::kAdd}};
        std::vector<Stmt>& body = k.phases[0].body;
        body.insert(body.begin(), guard);
      },
      "inside a guard");
}

TEST(Guard, RegistersInsideAreNotDefinedAfterIt) {
  ExpectRejected(
      [](Kernel& k) {
        First(k).dst = -1;
        k.phases[0].body[0].body[1].src[0] = 0;
      },
      "r0 is read before it is written");
  ExpectRejected(
      [](Kernel& k) {
        const Stmt zero{.kind = StmtKind::kConstant, .dst = 1};
        Second(k).body.insert(Second(k).body.begin(), zero);
      },
      "a guard sets a register again");
}

}  // namespace
}  // namespace fusor::codegen
