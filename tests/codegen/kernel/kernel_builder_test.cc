#include "codegen/kernel/kernel_builder.h"

#include <gmock/gmock.h>

#include <array>
#include <numeric>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "ir/support/error.h"
#include "tests/testing/bare_target.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::ScalarOp;
using ::testing::ElementsAre;
using ::testing::EndsWith;

KernelBuilder MakeBuilder() {
  return KernelBuilder("built", test::BareTarget().target());
}

// y[i] = 2 * x[i] for n elements.
Kernel Doubled(int64_t n) {
  KernelBuilder builder = MakeBuilder();
  const int x = builder.AddBuffer("x", DType::kF32, n, BufferUse::kRead);
  const int y = builder.AddBuffer("y", DType::kF32, n, BufferUse::kWritten);
  const int i = builder.AddAxis("i", n, AxisKind::kVector);
  {
    const auto phase = builder.BeginPhase({i});
    const int value = builder.Load(x, {0, {{i, 1}}});
    builder.Store(y, {0, {{i, 1}}},
                  builder.Compute(ScalarOp::kAdd, DType::kF32, {value, value}));
  }
  return std::move(builder).Build();
}

TEST(KernelBuilder, ComputesInTheOutermostLoopThatHasTheOperands) {
  KernelBuilder builder = MakeBuilder();
  const int x = builder.AddBuffer("x", DType::kF32, 24, BufferUse::kRead);
  const int y = builder.AddBuffer("y", DType::kF32, 24, BufferUse::kWritten);
  const int n = builder.AddAxis("n", 2);
  const int h = builder.AddAxis("h", 3);
  const int w = builder.AddAxis("w", 4, AxisKind::kVector);
  {
    const auto phase = builder.BeginPhase({n});
    const auto rows = builder.BeginLoop(h);
    const auto columns = builder.BeginLoop(w);
    const int first = builder.Load(x, {0, {{n, 12}, {h, 4}}});
    const int two = builder.Constant(DType::kF32, 2);
    const int scale =
        builder.Compute(ScalarOp::kMul, DType::kF32, {first, two});
    const Index index{0, {{n, 12}, {h, 4}, {w, 1}}};
    const int value = builder.Load(x, index);
    builder.Store(y, index,
                  builder.Compute(ScalarOp::kMul, DType::kF32, {value, scale}));
  }
  const Kernel kernel = std::move(builder).Build();
  Verify(kernel);
  EXPECT_THAT(Print(kernel), EndsWith(R"(
  phase grid=(a0)
    r1 = constant 0x1p+1
    loop a1:
      r0 = load b0[0 + 12*a0 + 4*a1]
      r2 = mul r0, r1
      loop a2:
        r3 = load b0[0 + 12*a0 + 4*a1 + 1*a2]
        r4 = mul r3, r2
        store b1[0 + 12*a0 + 4*a1 + 1*a2], r4
)"));
  EXPECT_FALSE(kernel.registers[2].vector);
  EXPECT_TRUE(kernel.registers[4].vector);
}

TEST(KernelBuilder, RegistersOfEndedLoopsAreUnavailable) {
  KernelBuilder builder = MakeBuilder();
  const int x = builder.AddBuffer("x", DType::kF32, 4, BufferUse::kRead);
  const int i = builder.AddAxis("i", 4);
  const auto phase = builder.BeginPhase({});
  const int outer = builder.Constant(DType::kF32, 1);
  int inner = -1;
  {
    const auto loop = builder.BeginLoop(i);
    inner = builder.Load(x, {0, {{i, 1}}});
    EXPECT_TRUE(builder.IsAvailable(inner));
  }
  const auto loop = builder.BeginLoop(i);
  EXPECT_TRUE(builder.IsAvailable(outer));
  EXPECT_FALSE(builder.IsAvailable(inner));
  EXPECT_THROW(builder.Compute(ScalarOp::kAdd, DType::kF32, {outer, inner}),
               Error);
}

TEST(KernelBuilder, StatementsNeedAPhase) {
  KernelBuilder builder = MakeBuilder();
  EXPECT_THROW(builder.Constant(DType::kF32, 1), Error);
  EXPECT_THROW((void)builder.BeginLoop(builder.AddAxis("i", 4)), Error);
  const auto phase = builder.BeginPhase({});
  EXPECT_THROW((void)builder.BeginPhase({}), Error);
  EXPECT_THROW(std::move(builder).Build(), Error);
}

TEST(KernelBuilder, RoundsConstantsAndWhatWrapsAround) {
  KernelBuilder builder = MakeBuilder();
  {
    const auto phase = builder.BeginPhase({});
    const int a = builder.Constant(DType::kU8, 256 + 200);
    builder.Compute(ScalarOp::kAdd, DType::kU8, {a, a});
    builder.Compute(ScalarOp::kMaximum, DType::kU8, {a, a});
    builder.Compute(ScalarOp::kAdd, DType::kI32, {a, a});
    builder.Compute(ScalarOp::kAdd, DType::kBF16, {a, a}, true);
  }
  const Kernel kernel = std::move(builder).Build();
  const std::vector<Stmt>& body = kernel.phases[0].body;
  EXPECT_EQ(body[0].constant, 200);
  EXPECT_TRUE(body[1].round);
  EXPECT_FALSE(body[2].round);
  EXPECT_FALSE(body[3].round);
  EXPECT_TRUE(body[4].round);
}

TEST(KernelBuilder, ReductionsKeepTheirOp) {
  KernelBuilder builder = MakeBuilder();
  const int x = builder.AddBuffer("x", DType::kF32, 40, BufferUse::kRead);
  const int y = builder.AddBuffer("y", DType::kF32, 1, BufferUse::kWritten);
  const int i = builder.AddAxis("i", 40, AxisKind::kVector);
  {
    const auto phase = builder.BeginPhase({});
    const int most = builder.Accumulator(ScalarOp::kMaximum, DType::kF32);
    {
      const auto loop = builder.BeginLoop(i);
      builder.Accumulate(most, builder.Load(x, {0, {{i, 1}}}));
    }
    builder.Store(y, {}, builder.ReduceLanes(most));
  }
  const Kernel kernel = std::move(builder).Build();
  Verify(kernel);
  std::array<float, 40> in{};
  std::iota(in.begin(), in.end(), -20.0F);
  float out = 0;
  const std::array<void*, 2> buffers{in.data(), &out};
  InterpretKernel(kernel, buffers.data());
  EXPECT_EQ(out, 19);
}

TEST(KernelBuilder, AppendsPhasesOfOtherKernels) {
  KernelBuilder builder = MakeBuilder();
  builder.AddBuffer("x", DType::kF32, 8, BufferUse::kRead);
  builder.AddBuffer("y", DType::kF32, 8, BufferUse::kWritten);
  const std::array<KernelBuilder::BufferRange, 2> first{{{0, 0}, {1, 0}}};
  const std::array<KernelBuilder::BufferRange, 2> second{{{0, 3}, {1, 3}}};
  builder.AppendPhases(Doubled(3), first);
  builder.AppendPhases(Doubled(5), second);
  const Kernel kernel = std::move(builder).Build();
  Verify(kernel);
  std::vector<float> in{1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<float> out(8);
  const std::array<void*, 2> buffers{in.data(), out.data()};
  InterpretKernel(kernel, buffers.data());
  EXPECT_THAT(out, ElementsAre(2, 4, 6, 8, 10, 12, 14, 16));
}

TEST(KernelBuilder, SplitsRowsOffGridAxes) {
  KernelBuilder builder("built", ir::FindTarget("nvidia-h200"));
  EXPECT_EQ(MakeBuilder().MaxRows(), 1);
  builder.AddBuffer("x", DType::kF32, 6400, BufferUse::kRead);
  builder.SizeBlock(64);
  EXPECT_EQ(builder.kernel().lanes, 64);
  EXPECT_EQ(builder.kernel().width, 4);
  EXPECT_EQ(builder.MaxRows(), 16);
  std::vector<int> grid;
  const auto parts = builder.AddGridAxis(grid, "n", 96, 16);
  EXPECT_THAT(grid, ElementsAre(0, 1));
  Index index;
  AddTerms(index, parts, 3);
  EXPECT_EQ(index, (Index{0, {{0, 48}, {1, 3}}}));
  EXPECT_EQ(builder.kernel().axes[0].extent, 6);
  EXPECT_TRUE(builder.kernel().axes[1].block);
}

TEST(BlockShape, ThreadsAccess16BytesOfTheNarrowestTensor) {
  EXPECT_EQ(ThreadWidth({{"x", DType::kF32, 64}}), 4);
  EXPECT_EQ(ThreadWidth({{"x", DType::kF32, 64}, {"y", DType::kF16, 64}}), 8);
  EXPECT_EQ(ThreadWidth({{"x", DType::kF32, 64}, {"y", DType::kBool, 64}}), 8);
  // A single element is not a tensor, so its dtype does not matter.
  EXPECT_EQ(ThreadWidth({{"x", DType::kF32, 64}, {"s", DType::kBF16, 1}}), 4);
}

TEST(BlockShape, LanesAreAPowerOfTwoWithinBounds) {
  EXPECT_EQ(LanesFor(3, 1, 256), 4);
  EXPECT_EQ(LanesFor(64, 1, 256), 64);
  EXPECT_EQ(LanesFor(65, 1, 256), 128);
  EXPECT_EQ(LanesFor(1000, 1, 256), 256);
  EXPECT_EQ(LanesFor(1, 8, 2048), 8);
}

TEST(BlockShape, LargestDivisors) {
  EXPECT_EQ(LargestDivisor(12, 5), 4);
  EXPECT_EQ(LargestDivisor(13, 5), 1);
  EXPECT_EQ(LargestDivisor(12, 100), 12);
  EXPECT_EQ(LargestDivisor(12, 0), 1);
}

}  // namespace
}  // namespace fusor::codegen
