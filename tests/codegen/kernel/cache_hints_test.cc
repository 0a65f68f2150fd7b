#include "codegen/kernel/cache_hints.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "codegen/cuda/cuda_printer.h"
#include "ir/support/error.h"
#include "tests/testing/kernel_statements.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::ScalarOp;
using test::Accumulate;
using test::Compute;
using test::Init;
using test::Load;
using test::Loop;
using test::ReduceBlock;
using test::Store;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Returns a GPU with 1000 bytes of L2.
ir::Target SmallGpu() {
  ir::Target target = ir::FindTarget("nvidia-h200");
  target.l2_bytes = 1000;
  return target;
}

// Returns a kernel with two phases. The first sums the columns of x
// f16[rows,64]. The second multiplies x by the sums and stores where x is
// positive.
Kernel Normalise(int64_t rows, DType dtype = DType::kF16) {
  Kernel k;
  k.name = "normalise";
  k.lanes = 64;
  k.width = 8;
  k.buffers = {{"x", dtype, rows * 64},
               {"y", dtype, rows * 64, true},
               {"mask", DType::kBool, rows * 64, true, false, true},
               {"sums", DType::kF32, 64, true, true}};
  k.axes = {{"row", 4, false, true}, {"c", 64, true}, {"turn", rows / 4}};
  k.registers = {{DType::kF32, true},  {dtype, true},
                 {DType::kF32, true},  {dtype, true},
                 {DType::kBool, true}, {DType::kF32, true}};
  const Index all{0, {{0, 64}, {1, 1}, {2, 256}}};
  k.phases.push_back(
      {{0, 1},
       {Init(ScalarOp::kAdd, 0),
        Loop(2, {Load(1, 0, all), Accumulate(ScalarOp::kAdd, 0, 1)}),
        ReduceBlock(ScalarOp::kAdd, 2, 0), Store(3, {0, {{1, 1}}}, 2)}});
  k.phases.push_back(
      {{0, 1},
       {Load(5, 3, {0, {{1, 1}}}),
        Loop(2, {Load(1, 0, all), Compute(ScalarOp::kMul, 3, {1, 5}),
                 Compute(ScalarOp::kGt, 4, {1, 5}), Store(1, all, 3),
                 Store(2, all, 4)})}});
  Verify(k);
  return k;
}

// Lists the evict-first accesses in order, such as "load b0".
std::vector<std::string> Streamed(const ir::Target& target, Kernel kernel) {
  SetCacheHints(target, kernel);
  std::vector<std::string> found;
  const auto walk = [&](const auto& self,
                        const std::vector<Stmt>& body) -> void {
    for (const Stmt& stmt : body) {
      if (stmt.streamed) {
        found.push_back(fmt::format(
            "{} b{}", stmt.kind == StmtKind::kLoad ? "load" : "store",
            stmt.buffer));
      }
      self(self, stmt.body);
    }
  };
  for (size_t p = 0; p < kernel.phases.size(); ++p) {
    walk(walk, kernel.phases[p].body);
    found.push_back(fmt::format("end {}", p));
  }
  return found;
}

TEST(StreamedAccess, IsTheLastOfATensorLargerThanTheCache) {
  EXPECT_THAT(Streamed(SmallGpu(), Normalise(8)),
              ElementsAre("end 0", "load b0", "store b2", "end 1"));
  // L2 holds 4 rows of f16, but not of f32.
  EXPECT_THAT(Streamed(SmallGpu(), Normalise(4)),
              ElementsAre("end 0", "store b2", "end 1"));
  EXPECT_THAT(Streamed(SmallGpu(), Normalise(4, DType::kF32)),
              ElementsAre("end 0", "load b0", "store b2", "end 1"));
}

TEST(StreamedAccess, IsNoneOfWhatIsReadAgain) {
  // Every row reads the sums.
  Kernel kernel = Normalise(8);
  ir::Target target = SmallGpu();
  target.l2_bytes = 0;
  EXPECT_THAT(Streamed(target, kernel),
              ElementsAre("end 0", "load b0", "store b2", "end 1"));
  // Two iterations read the same elements, then some elements are not read at
  // all.
  kernel.phases[1].body[1].body[0].index.terms[2].coefficient = 0;
  EXPECT_THAT(Streamed(target, kernel),
              ElementsAre("end 0", "store b2", "end 1"));
  kernel = Normalise(8);
  kernel.buffers[0].elements += 64;
  EXPECT_THAT(Streamed(target, kernel),
              ElementsAre("end 0", "store b2", "end 1"));
}

TEST(StreamedAccess, IsOfGpusAlone) {
  EXPECT_THAT(Streamed(ir::FindTarget("cpu-avx512"), Normalise(8)),
              ElementsAre("end 0", "end 1"));
}

// Lists the phases with a descending loop, such as "p0".
std::vector<std::string> Descending(const ir::Target& target, Kernel kernel) {
  SetCacheHints(target, kernel);
  Verify(kernel);
  std::vector<std::string> found;
  for (size_t p = 0; p < kernel.phases.size(); ++p) {
    VisitStatements(kernel.phases[p].body, [&](const Stmt& stmt) {
      if (stmt.descending) found.push_back(fmt::format("p{}", p));
    });
  }
  return found;
}

TEST(DescendingLoop, IsThatWhichReadsATensorAgain) {
  EXPECT_THAT(Descending(SmallGpu(), Normalise(8)), ElementsAre("p1"));
  EXPECT_THAT(Descending(ir::FindTarget("cpu-avx512"), Normalise(8)),
              ElementsAre());
  // Reads the elements in another order.
  Kernel other = Normalise(8);
  other.phases[1].body[1].body[0].index = {64, {{0, 64}, {1, 1}}};
  EXPECT_THAT(Descending(SmallGpu(), other), ElementsAre());
  // Reads a tensor that no phase has read before.
  Kernel first = Normalise(8);
  first.phases[0].body[1].body[0].buffer = 1;
  EXPECT_THAT(Descending(SmallGpu(), first), ElementsAre());
}

TEST(DescendingLoop, HasIndependentIterations) {
  // All iterations store one element, so the last one must run last.
  Kernel last = Normalise(8);
  last.phases[1].body[1].body[3].index.terms.pop_back();
  SetCacheHints(SmallGpu(), last);
  EXPECT_FALSE(last.phases[1].body[1].descending);
  last.phases[1].body[1].descending = true;
  EXPECT_THROW(Verify(last), Error);
  // A sum in another order is not bit-identical.
  Kernel sums = Normalise(8);
  sums.phases.push_back(sums.phases[0]);
  EXPECT_THAT(Descending(SmallGpu(), sums), ElementsAre());
  sums.phases[2].body[1].descending = true;
  EXPECT_THROW(Verify(sums), Error);
}

TEST(DescendingLoop, RunsFromTheLastIndexToTheFirst) {
  Kernel kernel = Normalise(16);
  const std::string stamp = KernelStamp(kernel);
  SetCacheHints(SmallGpu(), kernel);
  EXPECT_THAT(PrintCuda(kernel),
              HasSubstr("for (int g2 = 0; g2 >= 0; g2 -= 4)"));
  EXPECT_NE(KernelStamp(kernel), stamp);
  kernel = Normalise(24);
  SetCacheHints(SmallGpu(), kernel);
  EXPECT_THAT(PrintCuda(kernel),
              HasSubstr("for (int g2 = 3; g2 >= 0; g2 -= 3)"));
  // With two loads per iteration, nothing is prefetched.
  kernel.phases[1].body[1].body.insert(kernel.phases[1].body[1].body.begin(),
                                       kernel.phases[1].body[1].body.front());
  EXPECT_THAT(PrintCuda(kernel), HasSubstr("for (int a2 = 5; a2 >= 0; --a2)"));
}

TEST(StreamedAccess, IsInTheTextAndTheIdentity) {
  Kernel kernel = Normalise(8);
  const std::string plain = PrintCuda(kernel);
  EXPECT_THAT(plain, Not(HasSubstr("true>(")));
  const std::string stamp = KernelStamp(kernel);
  SetCacheHints(SmallGpu(), kernel);
  const std::string text = PrintCuda(kernel);
  EXPECT_THAT(text, HasSubstr("Load<F16, 8, true>("));
  EXPECT_THAT(text, HasSubstr("StoreBits<true>(b2 + (("));
  EXPECT_NE(KernelStamp(kernel), stamp);
}

}  // namespace
}  // namespace fusor::codegen
