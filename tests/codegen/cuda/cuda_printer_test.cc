#include "codegen/cuda/cuda_printer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "codegen/cuda/cuda_expressions.h"
#include "tests/testing/kernel_statements.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::ScalarOp;
using test::Accumulate;
using test::Compute;
using test::Constant;
using test::Init;
using test::Load;
using test::Loop;
using test::ReduceBlock;
using test::ReduceLanes;
using test::Store;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Returns the printed text without the prelude.
std::string Functions(const Kernel& kernel) {
  const std::string text = PrintCuda(kernel);
  const size_t prelude = text.find(CudaPrelude());
  EXPECT_NE(prelude, std::string::npos);
  return text.substr(prelude + CudaPrelude().size());
}

// Sums the columns of x f16[rows,columns] with 8 lanes per thread and 4 rows
// per block.
Kernel ColumnSums(int64_t rows, int64_t columns) {
  Kernel k;
  k.name = "column_sums";
  k.lanes = 64;
  k.width = 8;
  k.buffers = {{"x", DType::kF16, rows * columns},
               {"y", DType::kF32, columns, true}};
  k.axes = {{"row", 4, false, true}, {"c", columns, true}, {"turn", rows / 4}};
  k.registers = {{DType::kF32, true}, {DType::kF16, true}, {DType::kF32, true}};
  k.phases.push_back(
      {{0, 1},
       {Init(ScalarOp::kAdd, 0),
        Loop(2, {Load(1, 0, {0, {{0, columns}, {1, 1}, {2, 4 * columns}}}),
                 Accumulate(ScalarOp::kAdd, 0, 1)}),
        ReduceBlock(ScalarOp::kAdd, 2, 0), Store(1, {0, {{1, 1}}}, 2)}});
  Verify(k);
  return k;
}

TEST(PrintCuda, ColumnSums) {
  EXPECT_EQ(Functions(ColumnSums(12, 128)), R"(
extern "C" __global__ void __launch_bounds__(32) fusor_p0(const F16::Memory* b0, F32::Memory* b1) {
  [[maybe_unused]] const int x = threadIdx.x % 8, y = threadIdx.x / 8;
  __shared__ __align__(1024) unsigned char shared[1024];
  FUSOR_ON_SHARED(shared, 1024);
  float r0[8];
  float r1[8];
  float r2[8];
  [[maybe_unused]] int task = blockIdx.x;
  const int a1 = task % 2 * 64 + x * 8;
  task /= 2;
  const int a0 = y;
  #pragma unroll
  for (int l = 0; l < 8; ++l) {
    r0[l] = 0x0p+0f;
  }
  #pragma unroll 4
  for (int a2 = 0; a2 < 3; ++a2) {
    Load<F16, 8>(r1, b0 + (a0 * 128 + a1 + a2 * 512));
    #pragma unroll
    for (int l = 0; l < 8; ++l) {
      r0[l] = Add(r0[l], r1[l]);
    }
  }
  ReduceBlock<AddOp, 8, 4>(r2, r0, (float*)shared, x, y);
  if (y == 0) {
    Store<F32, 8>(b1 + (a1), r2);
  }
}
)");
  EXPECT_THAT(CudaLaunches(ColumnSums(12, 128)),
              ElementsAre(CudaLaunch{"fusor_p0", 2, 32}));
}

TEST(PrintCuda, BeginsWithItsStampAndHasNoNames) {
  Kernel kernel = ColumnSums(12, 128);
  const std::string text = PrintCuda(kernel);
  EXPECT_THAT(text, StartsWith("// " + KernelStamp(kernel) + "\n"));
  kernel.name = "other";
  kernel.buffers[0].name = "z";
  EXPECT_EQ(PrintCuda(kernel), text);
  EXPECT_THAT(text, Not(HasSubstr("atomic")));
  EXPECT_THAT(text, Not(HasSubstr("#include")));
}

// Accesses have 16 bytes if all addresses are aligned to that, otherwise as
// many as the alignment permits.
TEST(PrintCuda, AccessesAreAsWideAsAddressesAllow) {
  EXPECT_THAT(Functions(ColumnSums(12, 128)), HasSubstr("Load<F16, 8>"));
  EXPECT_THAT(Functions(ColumnSums(12, 68)), HasSubstr("Load<F16, 4>"));
  EXPECT_THAT(Functions(ColumnSums(12, 66)), HasSubstr("Load<F16, 2>"));
  EXPECT_THAT(Functions(ColumnSums(12, 61)), HasSubstr("Load<F16, 1>"));
}

TEST(PrintCuda, MasksTheEndOfTheVectorAxis) {
  const std::string whole = Functions(ColumnSums(12, 128));
  EXPECT_THAT(whole, Not(HasSubstr("active")));
  // All lanes of a thread are active, or none: then it skips the loop.
  const std::string threads = Functions(ColumnSums(12, 72));
  EXPECT_THAT(threads, HasSubstr("const int active1 = 72 - a1;"));
  EXPECT_THAT(threads, HasSubstr(R"(
  if (active1 > 0) {
    #pragma unroll 4
    for (int a2 = 0; a2 < 3; ++a2) {
      Load<F16, 8>(r1,)"));
  EXPECT_THAT(threads, Not(HasSubstr("LoadSome")));
  EXPECT_THAT(threads, Not(HasSubstr("if (l < active1)")));
  const std::string lanes = Functions(ColumnSums(12, 61));
  EXPECT_THAT(lanes,
              HasSubstr("else LoadSome<F16>(r1, b0 + (a0 * 61 + a1 + a2 * 244),"
                        " (int)1, active1);"));
  EXPECT_THAT(lanes, HasSubstr("else StoreSome<F32>("));
}

TEST(PrintCuda, IndicesGrowTo64BitWhereTheyMust) {
  EXPECT_THAT(Functions(ColumnSums(4, int64_t{1} << 28)),
              HasSubstr("for (int a2"));
  EXPECT_THAT(Functions(ColumnSums(8, int64_t{1} << 28)),
              HasSubstr("for (i64 a2"));
}

// y = x * x + 1.
Kernel SquarePlusOne(bool contract) {
  Kernel k;
  k.name = "square";
  k.lanes = 4;
  k.width = 4;
  k.contract = contract;
  k.buffers = {{"x", DType::kF32, 4}, {"y", DType::kF32, 4, true}};
  k.axes = {{"i", 4, true}};
  k.registers = {{DType::kF32, true}, {DType::kF32}, {DType::kF32, true}};
  k.phases.push_back(
      {{0},
       {Load(0, 0, {0, {{0, 1}}}), Constant(1, 1),
        Compute(ScalarOp::kMul, 2, {0, 0}), Compute(ScalarOp::kAdd, 2, {2, 1}),
        Store(1, {0, {{0, 1}}}, 2)}});
  return k;
}

TEST(PrintCuda, ContractionIsInTheTextAndNotInOptions) {
  const std::string fast = Functions(SquarePlusOne(true));
  EXPECT_THAT(fast, HasSubstr("r2[l] = Mul(r0[l], r0[l]);"));
  EXPECT_THAT(fast, HasSubstr("r2[l] = Add(r2[l], r1);"));
  const std::string exact = Functions(SquarePlusOne(false));
  EXPECT_THAT(exact, HasSubstr("r2[l] = ExactMul(r0[l], r0[l]);"));
  EXPECT_THAT(exact, HasSubstr("r2[l] = ExactAdd(r2[l], r1);"));
}

// y = x * x for `turns` times 256 elements. With `second`, y = x * w.
Kernel SquareInTurns(int64_t turns, bool second) {
  Kernel k;
  k.name = "square";
  k.lanes = 256;
  k.width = 8;
  k.buffers = {{"x", DType::kF16, turns * 256},
               {"y", DType::kF16, turns * 256, true}};
  k.axes = {{"i", 256, true}, {"turn", turns}};
  k.registers = {{DType::kF16, true}, {DType::kF16, true}, {DType::kF16, true}};
  const Index all{0, {{0, 1}, {1, 256}}};
  std::vector<Stmt> body{Load(0, 0, all), Compute(ScalarOp::kMul, 1, {0, 0}),
                         Store(1, all, 1)};
  if (second) {
    k.buffers.push_back({"w", DType::kF16, turns * 256});
    body.insert(body.begin(), Load(2, 2, all));
    body[2].src[1] = 2;
  }
  k.phases.push_back({{0}, {Loop(1, std::move(body))}});
  Verify(k);
  return k;
}

// Prefetches four loads before the first store.
TEST(PrintCuda, LoopsThatStorePrefetchSeveralLoads) {
  EXPECT_THAT(Functions(SquareInTurns(8, false)), HasSubstr(R"(
  for (int g1 = 0; g1 < 8; g1 += 4) {
    float ahead0[4][8];
    #pragma unroll
    for (int u = 0; u < 4; ++u) {
      const int a1 = g1 + u;
      Load<F16, 8>(ahead0[u], b0 + (a0 + a1 * 256));
    }
    #pragma unroll
    for (int u = 0; u < 4; ++u) {
      const int a1 = g1 + u;
      #pragma unroll
      for (int l = 0; l < 8; ++l) {
        r0[l] = ahead0[u][l];
        r1[l] = Mul(r0[l], r0[l]);
      }
      Store<F16, 8>(b1 + (a0 + a1 * 256), r1);
    }
  }
)"));
  EXPECT_THAT(Functions(SquareInTurns(9, false)), HasSubstr("g1 += 3"));
  EXPECT_THAT(Functions(SquareInTurns(7, false)), HasSubstr("++a1"));
  EXPECT_THAT(Functions(SquareInTurns(8, true)), HasSubstr("++a1"));
}

// y[index[i]] += x[i] for 48 rows of four elements: prefetches the indices, and
// loads x only where the index is inside.
TEST(PrintCuda, ScatterLoopsPrefetchTheirIndices) {
  Kernel k;
  k.name = "scatter";
  k.lanes = 4;
  k.width = 4;
  k.buffers = {{"x", DType::kF32, 192},
               {"index", DType::kI64, 48},
               {"y", DType::kF32, 40, true}};
  k.axes = {{"i", 4, true}, {"row", 48}, {"all", 40, true}};
  k.registers = {{DType::kI64}, {DType::kF32, true}, {DType::kF32}};
  k.phases.push_back({{2}, {Constant(2, 0), Store(2, {0, {{2, 1}}}, 2)}});
  Stmt scatter{.kind = codegen::StmtKind::kScatterAdd, .op = ScalarOp::kAdd};
  scatter.buffer = 2;
  scatter.index = {0, {{0, 1}}};
  scatter.indexed = {{0, 4, 10}};
  scatter.src[0] = 1;
  k.phases.push_back({{0},
                      {Loop(1, {Load(0, 1, {0, {{1, 1}}}),
                                Load(1, 0, {0, {{0, 1}, {1, 4}}}), scatter})}});
  Verify(k);
  const std::string text = Functions(k);
  EXPECT_THAT(text, HasSubstr(R"(
  for (int g1 = 0; g1 < 48; g1 += 48) {
    i64 ahead0[48];
    #pragma unroll
    for (int u = 0; u < 48; ++u) {
      const int a1 = g1 + u;
      ahead0[u] = I64::From(Get(b1 + (a1)));
    })"));
  EXPECT_THAT(text, HasSubstr(R"(
      r0 = ahead0[u];
      if ((u64)(i64)r0 < 10ull) {
        Load<F32, 4>(r1, b0 + (a0 + a1 * 4));)"));
}

// A vector loop that does not end with whole groups prints the last one apart.
TEST(PrintCuda, OnlyTheLastGroupOfALoopIsMasked) {
  Kernel k;
  k.name = "maximum";
  k.lanes = 32;
  k.width = 1;
  k.buffers = {{"x", DType::kF32, 77}, {"y", DType::kF32, 1, true}};
  k.axes = {{"i", 77, true}};
  k.registers = {{DType::kF32, true}, {DType::kF32, true}, {DType::kF32}};
  k.phases.push_back(
      {{},
       {Init(ScalarOp::kMaximum, 0),
        Loop(0,
             {Load(1, 0, {0, {{0, 1}}}), Accumulate(ScalarOp::kMaximum, 0, 1)}),
        ReduceLanes(ScalarOp::kMaximum, 2, 0), Store(1, {}, 2)}});
  Verify(k);
  EXPECT_THAT(Functions(k), HasSubstr(R"(
  #pragma unroll 4
  for (int g0 = 0; g0 < 64; g0 += 32) {
    const int a0 = g0 + x * 1;
    Load<F32, 1>(r1, b0 + (a0));
    #pragma unroll
    for (int l = 0; l < 1; ++l) {
      r0[l] = Max(r0[l], r1[l]);
    }
  }
  for (int g0 = 64; g0 < 77; g0 += 32) {
    const int a0 = g0 + x * 1;
    const int active0 = 77 - a0;)"));
}

// One value for all lanes can be stored twice.
TEST(PrintCuda, StoresOfOneValueAreScopesOfTheirOwn) {
  Kernel k;
  k.name = "fill";
  k.lanes = 4;
  k.width = 4;
  k.buffers = {{"x", DType::kF32, 4, true}, {"y", DType::kF32, 4, true}};
  k.axes = {{"i", 4, true}};
  k.registers = {{DType::kF32}};
  k.phases.push_back({{0},
                      {Constant(0, 1), Store(0, {0, {{0, 1}}}, 0),
                       Store(1, {0, {{0, 1}}}, 0)}});
  Verify(k);
  for (const char* buffer : {"b0", "b1"}) {
    EXPECT_THAT(Functions(k), HasSubstr(fmt::format(R"(
  {{
    float all0[4];
    for (int l = 0; l < 4; ++l) all0[l] = r0;
    Store<F32, 4>({} + (a0), all0);
  }})",
                                                    buffer)));
  }
}

// Loads of a buffer that another iteration may have written are not prefetched.
TEST(PrintCuda, WrittenBuffersAreNotPrefetched) {
  Kernel kernel = SquareInTurns(8, false);
  kernel.buffers[0].written = true;
  EXPECT_THAT(Functions(kernel), HasSubstr("++a1"));
}

// Every thread of a row reads s[0]. Only one stores, and may overwrite it.
TEST(PrintCuda, OneThreadStoresBehindABarrier) {
  Kernel k;
  k.name = "sum";
  k.lanes = 16;
  k.width = 4;
  k.buffers = {{"x", DType::kF32, 16},
               {"s", DType::kF32, 1},
               {"y", DType::kF32, 1, true}};
  k.axes = {{"i", 16, true}};
  k.registers = {{DType::kF32, true},
                 {DType::kF32, true},
                 {DType::kF32},
                 {DType::kF32},
                 {DType::kF32}};
  k.phases.push_back({{},
                      {Init(ScalarOp::kMaximum, 0),
                       Loop(0, {Load(1, 0, {0, {{0, 1}}}),
                                Accumulate(ScalarOp::kMaximum, 0, 1)}),
                       ReduceLanes(ScalarOp::kMaximum, 2, 0), Load(3, 1, {}),
                       Compute(ScalarOp::kAdd, 4, {2, 3}), Store(2, {}, 4)}});
  Verify(k);
  EXPECT_THAT(Functions(k), HasSubstr("  const u32 warp = 0xfu;\n"));
  EXPECT_THAT(Functions(k), HasSubstr(R"(
  r2 = ReduceLanes<MaxOp, 4>(r0, (float*)shared, x, y, warp);
  r3 = F32::From(Get(b1 + (0)));
  r4 = Add(r2, r3);
  __syncthreads();
  if (x == 0) {
    Put(b2 + (0), F32::To(F32::As(r4)));
  }
}
)"));
}

}  // namespace
}  // namespace fusor::codegen
