// The statements kDot, kStoreMatrix and kBarrier, matrix registers and shared
// memory: text, binary form, values, and the proofs of kernels.

#include <gmock/gmock.h>

#include <functional>
#include <vector>

#include "codegen/compile_kernels.h"
#include "codegen/kernel/kernel_builder.h"
#include "codegen/plan/plan.h"
#include "ir/support/error.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/plan_runner.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ::testing::HasSubstr;

constexpr int kLeft = 0, kRight = 1, kResult = 2, kFactors = 3,
              kSums = 4;  // buffers
constexpr int64_t kTileRows = 16, kTileColumns = 32, kTileDepth = 16;
constexpr int64_t kSumStride = 40;
// Axes of the phase.
constexpr int kBlock = 0, kThreadRow = 1;

// Emits the loops that store `lines` lines of `length` elements of an operand,
// one after another, in rows of a tile in shared memory.
void CopyFactor(KernelBuilder& b, int operand, int64_t offset, int64_t lines,
                int64_t length, int64_t task_stride) {
  const int turn = b.AddAxis("turn", lines / 4);
  const int lane = b.AddAxis("lane", length, AxisKind::kVector);
  const auto turns = b.BeginLoop(turn);
  const auto lanes = b.BeginLoop(lane);
  Index from{0, {{turn, 4 * length}, {kThreadRow, length}, {lane, 1}}};
  if (task_stride > 0) from.terms.push_back({kBlock, task_stride});
  b.Store(
      kFactors,
      {offset, {{turn, 4 * Dot::kTile}, {kThreadRow, Dot::kTile}, {lane, 1}}},
      b.Load(operand, from));
}

// c[32, 32] = a[32, 16] x b[16, 32] in two blocks of 16 rows and 32 threads.
// The factors are copied to shared memory, b as it is: row by row of the summed
// axis.
Kernel DotKernel() {
  KernelBuilder b("product", ir::FindTarget("nvidia-h200"));
  b.SetLanes(32, 4);
  b.AddBuffer("a", DType::kBF16, 2 * kTileRows * kTileDepth, BufferUse::kRead);
  b.AddBuffer("b", DType::kBF16, kTileDepth * kTileColumns, BufferUse::kRead);
  b.AddBuffer("c", DType::kF32, 2 * kTileRows * kTileColumns,
              BufferUse::kWritten);
  const int64_t second = Dot::kTileElements;
  b.AddBuffer("factors", DType::kBF16, 2 * Dot::kTileElements,
              BufferUse::kLocal);
  b.AddBuffer("sums", DType::kF32, kTileRows * kSumStride, BufferUse::kLocal);
  b.ShareMemory(kSums, kFactors);
  b.AddAxis("task", 2);
  b.AddAxis("row", 4, AxisKind::kBlock);
  {
    const auto phase = b.BeginPhase({kBlock, kThreadRow});
    const int matrix = b.Matrix(kTileRows, kTileColumns);
    CopyFactor(b, kLeft, 0, kTileRows, kTileDepth, kTileRows * kTileDepth);
    CopyFactor(b, kRight, second, kTileDepth, kTileColumns, 0);
    b.Barrier();
    Dot dot{.depth = kTileDepth};
    dot.factors[0] = {.buffer = kFactors};
    dot.factors[1] = {
        .buffer = kFactors, .offset = second, .depth_major = true};
    b.AddDot(matrix, dot);
    b.Barrier();
    b.StoreMatrix(kSums, kSumStride, matrix);
    b.Barrier();
    const int turn = b.AddAxis("turn", kTileRows / 4);
    const int lane = b.AddAxis("lane", kTileColumns, AxisKind::kVector);
    const auto turns = b.BeginLoop(turn);
    const auto lanes = b.BeginLoop(lane);
    b.Store(
        kResult,
        {0,
         {{kBlock, kTileRows * kTileColumns},
          {turn, 4 * kTileColumns},
          {kThreadRow, kTileColumns},
          {lane, 1}}},
        b.Load(
            kSums,
            {0,
             {{turn, 4 * kSumStride}, {kThreadRow, kSumStride}, {lane, 1}}}));
  }
  return std::move(b).Build();
}

// Returns the statement of a kind that is in no loop.
Stmt& Find(Kernel& kernel, StmtKind kind, int skip = 0) {
  for (Stmt& stmt : kernel.phases[0].body) {
    if (stmt.kind == kind && skip-- == 0) return stmt;
  }
  ADD_FAILURE() << "no such statement";
  return kernel.phases[0].body[0];
}

void Erase(Kernel& kernel, const Stmt& stmt) {
  std::vector<Stmt>& body = kernel.phases[0].body;
  body.erase(body.begin() + (&stmt - body.data()));
}

void ExpectRejected(const std::function<void(Kernel&)>& damage,
                    const std::string& message) {
  Kernel kernel = DotKernel();
  damage(kernel);
  EXPECT_THAT([&] { Verify(kernel); },
              testing::ThrowsMessage<Error>(HasSubstr(message)))
      << Print(kernel);
}

TEST(Dot, HasText) {
  const std::string text = Print(DotKernel());
  EXPECT_THAT(text, HasSubstr("  b4 f32[640] written scratch local shares b3 "
                              "sums\n"));
  EXPECT_THAT(text, HasSubstr("  r0 f32 matrix 16x32\n"));
  EXPECT_THAT(text, HasSubstr("    barrier\n"
                              "    r0 = dot b3[0], b3[4096] depth-major, "
                              "depth 16\n"
                              "    barrier\n"
                              "    store_matrix b4[0] stride 40, r0\n"
                              "    barrier\n"));
}

// Tiles extend beyond the rows.
TEST(Dot, IsSerialized) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %a = data : bf16[72,64]
      %b = data : bf16[64,64]
      %y = fusion(%a, %b) {rounding="fast"} : bf16[72,64] {
        %a = data : bf16[72,64]
        %b = data : bf16[64,64]
        %y = matmul(%a, %b) : bf16[72,64]
        return %y as "y"
      }
      return %y as "y"
    })");
  const test::FakeCompiler compiler("nvidia-h200");
  Plan plan = test::FuseAndPlan(*graph, compiler).plan;
  CompileKernels(plan, compiler, {});
  ASSERT_EQ(plan.kernels.size(), 1);
  Kernel& kernel = plan.kernels[0].kernel;
  const std::string text =
      Print(ParsePlan(SerializePlan(plan)).kernels[0].kernel);
  EXPECT_EQ(text, Print(kernel));
  EXPECT_THAT(text, HasSubstr(" shares b"));
  EXPECT_THAT(text, HasSubstr(" matrix 128x64\n"));
  EXPECT_THAT(text, HasSubstr("= guard "));
  EXPECT_THAT(text, HasSubstr(" depth-major, depth 64\n"));
  kernel.registers[0].rows = -1;
  EXPECT_THROW(ParsePlan(SerializePlan(plan)), Error);
}

TEST(Dot, AddsProducts) {
  const Kernel kernel = DotKernel();
  Verify(kernel);
  std::vector<uint16_t> a(2 * kTileRows * kTileDepth),
      b(kTileDepth * kTileColumns);
  std::vector<float> c(2 * kTileRows * kTileColumns), local(4096);
  const auto value = [](size_t i) {
    return static_cast<float>(i * 7 % 11) - 5;
  };
  for (size_t i = 0; i < a.size(); ++i) a[i] = ir::FloatToBFloat16(value(i));
  for (size_t i = 0; i < b.size(); ++i)
    b[i] = ir::FloatToBFloat16(value(i + 3));
  std::vector<float> sums(2000);
  void* const buffers[] = {a.data(), b.data(), c.data(), local.data(),
                           sums.data()};
  InterpretKernel(kernel, buffers);
  for (int64_t row = 0; row < 2 * kTileRows; ++row) {
    for (int64_t column = 0; column < kTileColumns; ++column) {
      float sum = 0;
      for (int64_t k = 0; k < kTileDepth; ++k) {
        sum +=
            value(row * kTileDepth + k) * value(k * kTileColumns + column + 3);
      }
      EXPECT_EQ(c[row * kTileColumns + column], sum) << row << ", " << column;
    }
  }
}

TEST(Dot, SharesMemory) {
  const SharedMemory memory = SharedMemoryOf(DotKernel());
  EXPECT_EQ(memory.offsets, (std::vector<int64_t>{-1, -1, -1, 0, 0}));
  EXPECT_EQ(memory.bytes, 2 * Dot::kTileElements * 2);  // factors
}

TEST(Dot, NeedsBarriers) {
  ExpectRejected([](Kernel& k) { Erase(k, Find(k, StmtKind::kBarrier, 0)); },
                 "dot b3[0], b3[4096] depth-major, depth 16: "
                 "no barrier after the stores to factors");
  ExpectRejected([](Kernel& k) { Erase(k, Find(k, StmtKind::kBarrier, 1)); },
                 "no barrier after the loads of factors");
  ExpectRejected([](Kernel& k) { Erase(k, Find(k, StmtKind::kBarrier, 2)); },
                 "no barrier after the stores to sums");
  // From one iteration to the next.
  ExpectRejected(
      [](Kernel& k) {
        std::vector<Stmt>& body = k.phases[0].body;
        Erase(k, Find(k, StmtKind::kBarrier, 1));
        k.axes.push_back({"again", 2});
        Stmt loop{.kind = StmtKind::kLoop,
                  .axis = static_cast<int>(k.axes.size()) - 1};
        const Stmt& dot = Find(k, StmtKind::kDot);
        const auto first = body.begin() + 1;
        const auto end = body.begin() + (&dot - body.data()) + 1;
        loop.body.assign(first, end);
        body.erase(first, end);
        body.insert(body.begin() + 1, {loop, {.kind = StmtKind::kBarrier}});
      },
      "no barrier after the loads of factors");
}

TEST(Dot, HasFactorsInsideOfLocalBuffers) {
  const auto dot = [](const std::function<void(Dot&)>& damage) {
    return [damage](Kernel& k) { damage(Find(k, StmtKind::kDot).dot); };
  };
  ExpectRejected(dot([](Dot& d) { d.factors[0].buffer = kLeft; }),
                 "b0 is not local");
  ExpectRejected(dot([](Dot& d) { d.factors[1].offset += 16; }),
                 "factor 1 of 32x16 in bf16 factors[8192]");
  ExpectRejected(dot([](Dot& d) { d.factors[1].offset += Dot::kTileElements; }),
                 "factor 1 of 32x16");
  ExpectRejected(dot([](Dot& d) { d.depth = 12; }), "depth");
  ExpectRejected(dot([](Dot& d) { d.factors[0].buffer = kSums; }),
                 "in f32 sums");
}

TEST(Dot, BelongsToAllThreadsOfABlock) {
  ExpectRejected([](Kernel& k) { k.width = 0; }, "r0 is a matrix of 16x32");
  ExpectRejected([](Kernel& k) { k.registers[0].rows = 12; },
                 "r0 is a matrix of 12x32");
  for (const Stmt& stmt :
       {Stmt{.kind = StmtKind::kConstant, .dst = 0},
        Stmt{
            .kind = StmtKind::kStore, .src = {0, -1, -1}, .buffer = kResult}}) {
    ExpectRejected([&](Kernel& k) { k.phases[0].body.push_back(stmt); },
                   "the matrix r0 has no lanes");
  }
  ExpectRejected(
      [](Kernel& k) {
        Stmt& loop = Find(k, StmtKind::kLoop, 2);
        loop.body[0].body.push_back({.kind = StmtKind::kBarrier});
      },
      "inside a vector axis");
}

TEST(Dot, StoresSumsThatWereMade) {
  ExpectRejected([](Kernel& k) { Find(k, StmtKind::kStoreMatrix).stride = 16; },
                 "store_matrix b4[0] stride 16, r0: stride");
  ExpectRejected([](Kernel& k) { Erase(k, Find(k, StmtKind::kInit)); },
                 "r0 holds no sums");
  ExpectRejected([](Kernel& k) { Erase(k, Find(k, StmtKind::kStoreMatrix)); },
                 "the task has not stored sums");
}

}  // namespace
}  // namespace fusor::codegen
