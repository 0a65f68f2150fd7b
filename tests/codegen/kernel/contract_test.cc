// The statement kContract, tile registers and local buffers: text, binary form,
// and the proofs of kernels.

#include <gmock/gmock.h>

#include <functional>

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

constexpr int kA = 0, kB = 1, kC = 2, kLocal = 3;  // buffers
// Axes.
constexpr int kTask = 0, kRow = 1, kGroup = 2, kLane = 3, kK = 4;

// c[8, 16] = |a[8, 5]| x b[5, 16] in four tasks of two rows. Each task stores
// the absolute values of its rows in a local buffer first.
Kernel Product() {
  KernelBuilder b("product", ir::FindTarget("cpu-avx2"));
  b.AddBuffer("a", DType::kF32, 40, BufferUse::kRead);
  b.AddBuffer("b", DType::kF32, 80, BufferUse::kRead);
  b.AddBuffer("c", DType::kF32, 128, BufferUse::kWritten);
  b.AddBuffer("rows", DType::kF32, 10, BufferUse::kLocal);
  b.AddAxis("task", 4);
  b.AddAxis("row", 2);
  b.AddAxis("group", 2);
  b.AddAxis("lane", 8, AxisKind::kVector);
  b.AddAxis("k", 5);
  const int all = b.AddAxis("all", 10, AxisKind::kVector);
  {
    const auto phase = b.BeginPhase({kTask});
    {
      const auto loop = b.BeginLoop(all);
      const int a = b.Load(kA, {0, {{kTask, 10}, {all, 1}}});
      b.Store(kLocal, {0, {{all, 1}}},
              b.Compute(ir::ScalarOp::kAbs, DType::kF32, {a}));
    }
    const auto lanes = b.BeginLoop(kLane);
    const int sum = b.Tile(DType::kF32, {kRow, kGroup}, true);
    const int scalars = b.Tile(DType::kF32, {kRow}, false);
    const int vectors = b.Tile(DType::kF32, {kGroup}, true);
    b.ClearTile(sum);
    {
      const auto contract = b.BeginContract(kK, sum, scalars, vectors);
      {
        const auto row = b.BeginLoop(kRow);
        b.Assign(scalars, b.Load(kLocal, {0, {{kRow, 5}, {kK, 1}}}));
      }
      const auto group = b.BeginLoop(kGroup);
      b.Assign(vectors, b.Load(kB, {0, {{kK, 16}, {kGroup, 8}, {kLane, 1}}}));
    }
    const auto group = b.BeginLoop(kGroup);
    const auto row = b.BeginLoop(kRow);
    b.Store(kC, {0, {{kTask, 32}, {kRow, 16}, {kGroup, 8}, {kLane, 1}}}, sum);
  }
  return std::move(b).Build();
}

// Returns the first statement of a kind, also inside loops.
Stmt& Find(std::vector<Stmt>& body, const std::function<bool(const Stmt&)>& is,
           Stmt* none = nullptr) {
  for (Stmt& stmt : body) {
    if (is(stmt)) return stmt;
    Stmt missing{.kind = StmtKind::kLoop};
    Stmt& inner = Find(stmt.body, is, &missing);
    if (&inner != &missing) return inner;
  }
  if (none == nullptr) ADD_FAILURE() << "no such statement";
  return *none;
}

Stmt& Access(Kernel& kernel, StmtKind kind, int buffer) {
  return Find(kernel.phases[0].body, [&](const Stmt& stmt) {
    return stmt.kind == kind && stmt.buffer == buffer;
  });
}

Stmt& Contract(Kernel& kernel) {
  return Find(kernel.phases[0].body, [](const Stmt& stmt) {
    return stmt.kind == StmtKind::kContract;
  });
}

void ExpectRejected(const Kernel& kernel, const std::string& message) {
  EXPECT_THAT([&] { Verify(kernel); },
              testing::ThrowsMessage<Error>(HasSubstr(message)))
      << Print(kernel);
}

TEST(Contract, HasText) {
  const std::string text = Print(Product());
  EXPECT_THAT(text, HasSubstr("  b3 f32[10] written scratch local rows\n"));
  EXPECT_THAT(text, HasSubstr("  r2 f32 vector tile=(a1, a2)\n"));
  EXPECT_THAT(text, HasSubstr("      r2 = contract a4: r3 * r4\n"
                              "        loop a1:\n"
                              "          r5 = load b3[0 + 5*a1 + 1*a4]\n"
                              "          r3 = identity r5\n"));
}

TEST(Contract, IsSerialized) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %a = data : f32[32,40]
      %b = data : f32[40,24]
      %y = fusion(%a, %b) {rounding="fast"} : f32[32,24] {
        %a = data : f32[32,40]
        %b = data : f32[40,24]
        %x = relu(%a) : f32[32,40]
        %y = matmul(%x, %b) : f32[32,24]
        return %y as "y"
      }
      return %y as "y"
    })");
  const test::FakeCompiler compiler;
  Plan plan = test::FuseAndPlan(*graph, compiler).plan;
  CompileKernels(plan, compiler, {});
  const Plan again = ParsePlan(SerializePlan(plan));
  ASSERT_EQ(again.kernels.size(), 1);
  const std::string text = Print(again.kernels[0].kernel);
  EXPECT_EQ(text, Print(plan.kernels[0].kernel));
  EXPECT_THAT(text, HasSubstr(" local "));
  EXPECT_THAT(text, HasSubstr("contract a"));
}

TEST(Contract, MultipliesAbsoluteValues) {
  const Kernel kernel = Product();
  Verify(kernel);
  std::vector<float> a(40), b(80), c(128), rows(10);
  for (int i = 0; i < 40; ++i) a[i] = static_cast<float>(i % 7 - 3);
  for (int i = 0; i < 80; ++i) b[i] = static_cast<float>(i % 5 - 2);
  void* const buffers[] = {a.data(), b.data(), c.data(), rows.data()};
  InterpretKernel(kernel, buffers);
  for (int row = 0; row < 8; ++row) {
    for (int column = 0; column < 16; ++column) {
      float sum = 0;
      for (int k = 0; k < 5; ++k) {
        sum += std::abs(a[row * 5 + k]) * b[k * 16 + column];
      }
      EXPECT_EQ(c[row * 16 + column], sum) << row << ", " << column;
    }
  }
}

TEST(ContractFaults, TileLeavesItsBuffer) {
  for (const int buffer : {kA, kB, kC}) {
    Kernel kernel = Product();
    --kernel.buffers[buffer].elements;
    ExpectRejected(kernel, "index of " + kernel.buffers[buffer].name);
  }
}

TEST(ContractFaults, TasksMeet) {
  Kernel kernel = Product();
  Access(kernel, StmtKind::kStore, kC).index.terms[0].coefficient = 16;
  ExpectRejected(kernel, "several tasks of a phase meet in c");
}

TEST(ContractFaults, SumIsNotCleared) {
  Kernel kernel = Product();
  std::vector<Stmt>& body = kernel.phases[0].body[1].body;
  body.erase(body.begin());
  ExpectRejected(kernel, "r2 is read before it is written");
}

TEST(ContractFaults, FactorIsNotComputed) {
  Kernel kernel = Product();
  Contract(kernel).body.pop_back();
  ExpectRejected(kernel, "r4 is read before it is written");
}

TEST(ContractFaults, TileIsReadOutsideItsAxes) {
  Kernel kernel = Product();
  Stmt& contract = Contract(kernel);
  contract.body.push_back({.kind = StmtKind::kCompute,
                           .dst = contract.body[0].body[0].dst,
                           .src = {contract.src[0], -1, -1}});
  ExpectRejected(kernel, "r3 is accessed outside its tile axis a1");
}

TEST(ContractFaults, FactorHasAnotherTileAxis) {
  Kernel kernel = Product();
  Stmt& contract = Contract(kernel);
  contract.dst = contract.src[0];
  ExpectRejected(kernel, "tile axis a2 of r4 is no tile axis of the result");
}

TEST(ContractFaults, TileIsTooLarge) {
  Kernel kernel = Product();
  kernel.axes[kRow].extent = 40;
  ExpectRejected(kernel, "tile of more than 64 values");
}

TEST(ContractFaults, LocalBufferIsSharedByTasks) {
  Kernel kernel = Product();
  Access(kernel, StmtKind::kLoad, kLocal).index.terms[1].axis = kTask;
  ExpectRejected(kernel, "index of the local rows uses grid axis a0");
}

TEST(ContractFaults, LocalBufferIsNotStoredBefore) {
  Kernel kernel = Product();
  std::vector<Stmt>& body = kernel.phases[0].body;
  std::rotate(body.begin(), body.begin() + 1, body.end());
  ExpectRejected(kernel, "the task has not stored rows[0]");
  kernel = Product();
  kernel.axes.back().extent = 9;
  ExpectRejected(kernel, "the task has not stored rows[9]");
}

TEST(ContractFaults, LocalBufferIsTooLarge) {
  Kernel kernel = Product();
  kernel.buffers[kLocal].elements = kMaxLocalBytes;
  ExpectRejected(kernel, "is local");
}

}  // namespace
}  // namespace fusor::codegen
