#include "codegen/kernel/kernel_ir.h"

#include <gmock/gmock.h>

#include <functional>

#include "codegen/kernel/access_analysis.h"
#include "ir/support/error.h"
#include "tests/testing/kernel_statements.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::ScalarOp;
using test::Load;
using test::Loop;
using test::Store;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Stmt Unary(ScalarOp op, int dst, int src) {
  return {
      .kind = StmtKind::kCompute, .dst = dst, .op = op, .src = {src, -1, -1}};
}

// y[r] = sum over c of |x[r, c]| for x of 3 x 100, in two phases: the first
// stores absolute values in a scratch buffer.
Kernel RowSums() {
  Kernel k;
  k.name = "row_sums";
  k.lanes = 8;
  k.buffers = {{"x", DType::kF32, 300},
               {"scratch", DType::kF32, 300, true, true},
               {"y", DType::kF32, 3, true}};
  k.axes = {{"i", 300, true}, {"r", 3}, {"c", 100, true}};
  k.registers = {{DType::kF32, true},
                 {DType::kF32, true},
                 {DType::kF32, true},
                 {DType::kF32, true},
                 {DType::kF32, false}};
  k.phases.push_back({{0},
                      {Load(0, 0, {0, {{0, 1}}}), Unary(ScalarOp::kAbs, 1, 0),
                       Store(1, {0, {{0, 1}}}, 1)}});
  k.phases.push_back(
      {{1},
       {{.kind = StmtKind::kInit, .dst = 2, .op = ScalarOp::kAdd},
        Loop(2, {Load(3, 1, {0, {{1, 100}, {2, 1}}}),
                 {.kind = StmtKind::kAccumulate,
                  .dst = 2,
                  .op = ScalarOp::kAdd,
                  .src = {3, -1, -1}}}),
        {.kind = StmtKind::kReduceLanes,
         .dst = 4,
         .op = ScalarOp::kAdd,
         .src = {2, -1, -1}},
        Store(2, {0, {{1, 1}}}, 4)}});
  return k;
}

std::string Failure(const Kernel& kernel,
                    const std::vector<bool>& padded = {}) {
  try {
    Verify(kernel);
    CheckResults(kernel, padded);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    return error.what();
  }
  return "";
}

std::string FailureAfter(const std::function<void(Kernel&)>& change) {
  Kernel kernel = RowSums();
  change(kernel);
  return Failure(kernel);
}

TEST(KernelIrTest, TasksCountGroupsOfLanes) {
  const Kernel kernel = RowSums();
  EXPECT_EQ(NumTasks(kernel, kernel.phases[0]), 38);
  EXPECT_EQ(NumTasks(kernel, kernel.phases[1]), 3);
  EXPECT_EQ(NumTasks(kernel, Phase{}), 1);
}

TEST(KernelIrTest, PrintsEveryStatement) {
  EXPECT_EQ(Print(RowSums()),
            "kernel row_sums lanes=8 contract=on\n"
            "  b0 f32[300] x\n"
            "  b1 f32[300] written scratch scratch\n"
            "  b2 f32[3] written y\n"
            "  a0 300 vector i\n"
            "  a1 3 r\n"
            "  a2 100 vector c\n"
            "  r0 f32 vector\n"
            "  r1 f32 vector\n"
            "  r2 f32 vector\n"
            "  r3 f32 vector\n"
            "  r4 f32\n"
            "  phase grid=(a0)\n"
            "    r0 = load b0[0 + 1*a0]\n"
            "    r1 = abs r0\n"
            "    store b1[0 + 1*a0], r1\n"
            "  phase grid=(a1)\n"
            "    r2 = init add\n"
            "    loop a2:\n"
            "      r3 = load b1[0 + 100*a1 + 1*a2]\n"
            "      r2 = accumulate add r3\n"
            "    r4 = reduce_lanes add r2\n"
            "    store b2[0 + 1*a1], r4\n");
}

TEST(KernelIrTest, PrintsTheValueOfARegisterWhereItIsSet) {
  Kernel kernel = RowSums();
  kernel.registers[2].value = "layer1.sum";
  EXPECT_THAT(Print(kernel),
              AllOf(HasSubstr("    r2 = init add  // %layer1.sum\n"),
                    HasSubstr("accumulate add r3  // %layer1.sum\n"),
                    HasSubstr("    r4 = reduce_lanes add r2\n")));
}

TEST(KernelIrTest, IdentityLeavesOutNamesOnly) {
  Kernel renamed = RowSums();
  renamed.name = "other";
  renamed.buffers[0].name = "z";
  renamed.axes[0].name = "q";
  renamed.registers[1].value = "layer1.abs";
  EXPECT_EQ(Print(renamed, true), Print(RowSums(), true));
  EXPECT_THAT(Print(renamed, true), Not(HasSubstr("other")));
  const std::vector<std::function<void(Kernel&)>> changes = {
      [](Kernel& k) { k.lanes = 16; },
      [](Kernel& k) { k.contract = false; },
      [](Kernel& k) { k.buffers[0].dtype = DType::kF16; },
      [](Kernel& k) { k.axes[1].extent = 2; },
      [](Kernel& k) { k.registers[1].dtype = DType::kBF16; },
      [](Kernel& k) { k.phases[0].body[1].round = true; },
      [](Kernel& k) { k.phases[0].body[1].op = ScalarOp::kNeg; },
      [](Kernel& k) { k.phases[1].body[3].index.offset = 1; }};
  for (const auto& change : changes) {
    Kernel changed = RowSums();
    change(changed);
    EXPECT_NE(Print(changed, true), Print(RowSums(), true));
  }
}

TEST(KernelIrTest, ConstantsPrintExactly) {
  Kernel kernel = RowSums();
  kernel.phases[0].body = {
      {.kind = StmtKind::kConstant, .dst = 0, .constant = 0.1},
      {.kind = StmtKind::kConstant, .dst = 0, .constant = -0.0}};
  EXPECT_THAT(Print(kernel), HasSubstr("constant 0x1.999999999999ap-4"));
  EXPECT_THAT(Print(kernel), HasSubstr("constant -0x0p+0"));
}

TEST(KernelVerifyTest, AcceptsASoundKernel) {
  EXPECT_EQ(Failure(RowSums()), "");
}

TEST(KernelVerifyTest, RejectsAnIndexThatLeavesItsBuffer) {
  EXPECT_THAT(FailureAfter([](Kernel& k) { k.buffers[0].elements = 299; }),
              HasSubstr("index of x runs from 0 to 299 of 299 elements"));
  EXPECT_THAT(
      FailureAfter([](Kernel& k) { k.phases[0].body[0].index.offset = -1; }),
      HasSubstr("from -1"));
}

TEST(KernelVerifyTest, RejectsAnAxisThatIsNotOpen) {
  EXPECT_THAT(FailureAfter([](Kernel& k) {
                k.phases[0].body[0].index.terms[0].axis = 1;
              }),
              HasSubstr("axis a1, which is not open"));
}

TEST(KernelVerifyTest, RejectsARegisterReadBeforeItIsWritten) {
  EXPECT_THAT(FailureAfter([](Kernel& k) { k.phases[0].body[1].src[0] = 3; }),
              HasSubstr("r3 is read before it is written"));
  // The register is written only in a loop.
  EXPECT_THAT(FailureAfter([](Kernel& k) { k.phases[1].body[2].src[0] = 3; }),
              HasSubstr("r3 is read before it is written"));
  // Registers do not survive a phase.
  EXPECT_THAT(FailureAfter([](Kernel& k) {
                k.phases[1].body.erase(k.phases[1].body.begin());
              }),
              HasSubstr("r2 is read before it is written"));
}

TEST(KernelVerifyTest, RejectsVectorsWithoutAVectorAxis) {
  EXPECT_THAT(FailureAfter([](Kernel& k) { k.axes[0].vector = false; }),
              HasSubstr("vector r0 outside a vector axis"));
}

TEST(KernelVerifyTest, RejectsUniformRegistersThatDifferByLane) {
  EXPECT_THAT(FailureAfter([](Kernel& k) { k.registers[0].vector = false; }),
              HasSubstr("uniform r0 depends on vector axis a0"));
  EXPECT_THAT(FailureAfter([](Kernel& k) { k.registers[1].vector = false; }),
              HasSubstr("uniform r1 computed from the vector r0"));
}

// y[c] = sum over r of x[r, c] for x of 6 x 40. The rows of a block split r.
Kernel ColumnSums() {
  Kernel k;
  k.name = "column_sums";
  k.lanes = 32;
  k.width = 8;
  k.buffers = {{"x", DType::kF32, 240}, {"y", DType::kF32, 40, true}};
  k.axes = {{"r", 6, false, true}, {"c", 40, true}};
  k.registers = {{DType::kF32, true}, {DType::kF32, true}};
  k.phases.push_back({{0, 1},
                      {Load(0, 0, {0, {{0, 40}, {1, 1}}}),
                       {.kind = StmtKind::kReduceBlock,
                        .dst = 1,
                        .op = ScalarOp::kAdd,
                        .src = {0, -1, -1}},
                       Store(1, {0, {{1, 1}}}, 1)}});
  return k;
}

TEST(KernelIrTest, RowsOfABlockAreOneTask) {
  const Kernel kernel = ColumnSums();
  EXPECT_EQ(Failure(kernel), "");
  EXPECT_EQ(NumTasks(kernel, kernel.phases[0]), 2);
  EXPECT_EQ(NumRows(kernel, kernel.phases[0]), 6);
  EXPECT_EQ(BlockAxis(kernel, kernel.phases[0]), 0);
  EXPECT_EQ(Print(kernel, true),
            "kernel lanes=32/8 contract=on\n"
            "  b0 f32[240]\n"
            "  b1 f32[40] written\n"
            "  a0 6 block\n"
            "  a1 40 vector\n"
            "  r0 f32 vector\n"
            "  r1 f32 vector\n"
            "  phase grid=(a0, a1)\n"
            "    r0 = load b0[0 + 40*a0 + 1*a1]\n"
            "    r1 = reduce_block add r0\n"
            "    store b1[0 + 1*a1], r1\n");
}

TEST(KernelIrTest, InterpreterAddsRowsByHalves) {
  std::vector<float> x(240);
  for (int i = 0; i < 240; ++i) {
    // The 6 rows are summed as (x0+x4)+x2 and (x1+x5)+x3. 1e8 + 3 equals 1e8 in
    // f32.
    x[i] = i / 40 == 0 ? 1e8f : i / 40 == 4 ? 3.0f : i / 40 == 2 ? -1e8f : 1.0f;
  }
  std::vector<float> y(40, -1);
  void* buffers[] = {x.data(), y.data()};
  InterpretKernel(ColumnSums(), buffers);
  EXPECT_EQ(y, std::vector<float>(40, 3.0f));
}

TEST(KernelVerifyTest, RejectsBlockAxesWhereNoneMayBe) {
  Kernel k = ColumnSums();
  k.axes[0].block = false;
  EXPECT_THAT(Failure(k), HasSubstr("without a block axis"));
  k = ColumnSums();
  k.axes.push_back({"q", 2, false, true});
  k.phases[0].grid = {2, 0, 1};
  EXPECT_THAT(Failure(k), HasSubstr("block axes a2 and a0"));
  k = ColumnSums();
  k.phases[0].body = {Loop(0, {})};
  k.phases[0].grid = {1};
  EXPECT_THAT(Failure(k), HasSubstr("a loop over block axis a0"));
  k = ColumnSums();
  k.width = 64;
  EXPECT_THAT(Failure(k), HasSubstr("32 lanes, 64 a thread"));
}

TEST(KernelVerifyTest, RejectsNestedVectorAxes) {
  EXPECT_THAT(FailureAfter([](Kernel& k) { k.phases[0].body = {Loop(2, {})}; }),
              HasSubstr("vector axis a2 inside vector axis a0"));
}

TEST(KernelVerifyTest, RejectsStoresToReadOnlyBuffers) {
  EXPECT_THAT(FailureAfter([](Kernel& k) { k.buffers[2].written = false; }),
              HasSubstr("store to y, which is not written"));
}

TEST(KernelVerifyTest, RejectsTasksThatMeet) {
  // All three rows store y[0].
  EXPECT_THAT(
      FailureAfter([](Kernel& k) { k.phases[1].body[3].index.terms.clear(); }),
      HasSubstr("several tasks of a phase meet in y[0]"));
  // Stored rows overlap by one column.
  EXPECT_THAT(
      FailureAfter([](Kernel& k) {
        k.buffers[2].elements = 300;
        k.phases[1].body[1].body.push_back(Store(2, {0, {{1, 99}, {2, 1}}}, 3));
        k.phases[1].body.pop_back();
      }),
      HasSubstr("several tasks of a phase meet in y[99]"));
}

TEST(KernelVerifyTest, RejectsToReadWhatAnotherTaskWrites) {
  EXPECT_THAT(FailureAfter([](Kernel& k) {
                k.buffers[1].elements = 316;
                Stmt load = Load(3, 1, {16, {{0, 1}}});
                k.phases[0].body.insert(k.phases[0].body.begin(), load);
              }),
              HasSubstr("several tasks of a phase meet in scratch"));
}

TEST(KernelVerifyTest, RejectsResultsThatAreNotStoredWhole) {
  // y has one element more than the rows store.
  EXPECT_THAT(
      FailureAfter([](Kernel& k) { k.buffers[2].elements = 4; }),
      HasSubstr("y[3] is never stored, last store: store b2[0 + 1*a1]"));
  EXPECT_THAT(FailureAfter([](Kernel& k) {
                k.buffers[2].elements = 5;
                k.phases[1].body[3].index.terms[0].coefficient = 2;
              }),
              HasSubstr("y[1] is never stored"));
  EXPECT_THAT(FailureAfter([](Kernel& k) { k.phases[1].body.pop_back(); }),
              HasSubstr("y[0] is never stored"));
}

TEST(KernelVerifyTest, LeavesPaddingBetweenTensorsAlone) {
  Kernel k = RowSums();
  k.buffers[2].elements = 16;  // 64 bytes
  EXPECT_EQ(Failure(k, {false, false, true}), "");
  EXPECT_THAT(Failure(k), HasSubstr("y[3] is never stored"));
  for (const int64_t elements : {8, 32}) {
    k.buffers[2].elements = elements;
    EXPECT_THAT(Failure(k, {false, false, true}),
                HasSubstr("y[3] is never stored"));
  }
}

TEST(KernelVerifyTest, RejectsToLoadWhatIsNotStoredYet) {
  EXPECT_THAT(FailureAfter([](Kernel& k) { k.axes[0].extent = 299; }),
              HasSubstr("r3 = load b1[0 + 100*a1 + 1*a2]: scratch[299] has not "
                        "been stored yet"));
  EXPECT_THAT(
      FailureAfter([](Kernel& k) { std::swap(k.phases[0], k.phases[1]); }),
      HasSubstr("scratch[0] has not been stored yet"));
}

// Rows and lanes of a GPU are separate threads. Lanes of a CPU are not.
TEST(KernelVerifyTest, RejectsThreadsThatMeet) {
  Kernel k = ColumnSums();
  k.buffers[1].elements = 240;
  k.phases[0].body[2].index = {0, {{0, 40}, {1, 1}}};
  EXPECT_EQ(Failure(k), "");
  k.buffers[1].elements = 45;
  k.phases[0].body[2].index = {0, {{0, 1}, {1, 1}}};
  EXPECT_THAT(Failure(k), HasSubstr("several tasks of a phase meet in y[1]"));
  // All rows read what row 0 has stored, without a barrier.
  k = ColumnSums();
  k.phases[0].body.push_back(Load(0, 1, {0, {{1, 1}}}));
  EXPECT_THAT(Failure(k), HasSubstr("several tasks of a phase meet in y[0]"));
  k.phases[0].body.back() = Load(0, 0, {0, {{1, 1}}});
  EXPECT_EQ(Failure(k), "");
}

TEST(KernelVerifyTest, RejectsIndicesBeyondAllNumbers) {
  EXPECT_THAT(FailureAfter([](Kernel& k) {
                k.phases[0].body[0].index.terms[0].coefficient = int64_t{1}
                                                                 << 61;
              }),
              HasSubstr("index of x runs from"));
}

// Stores are interleaved as in a pooling's gradient. y is too large to
// enumerate its elements.
TEST(KernelVerifyTest, ProvesLargeResultsOfSeveralStores) {
  constexpr int64_t kImages = 32, kRows = 112, kChannels = 64;
  Kernel k;
  k.name = "gradient";
  k.buffers = {{"x", DType::kF32, kChannels},
               {"y", DType::kF32, kImages * kRows * kRows * kChannels, true}};
  k.axes = {{"n", kImages},
            {"h", kRows / 2},
            {"w", kRows / 2},
            {"c", kChannels, true}};
  k.registers = {{DType::kF32, true}};
  std::vector<Stmt> body{Load(0, 0, {0, {{3, 1}}})};
  for (const int64_t h : {0, 1}) {
    for (const int64_t w : {0, 1}) {
      body.push_back(Store(1,
                           {(h * kRows + w) * kChannels,
                            {{0, kRows * kRows * kChannels},
                             {1, 2 * kRows * kChannels},
                             {2, 2 * kChannels},
                             {3, 1}}},
                           0));
    }
  }
  k.phases.push_back({{0, 1, 2, 3}, body});
  EXPECT_EQ(Failure(k), "");
  k.phases[0].body.pop_back();
  EXPECT_THAT(Failure(k), HasSubstr("cannot prove that all of y is stored"));
}

// Loads two vectors from each of four rows of 16, and stores them as eight
// pairs.
Kernel Pairs() {
  Kernel k;
  k.name = "pairs";
  k.lanes = 8;
  k.buffers = {{"x", DType::kF32, 64}, {"y", DType::kBF16, 64, true}};
  k.axes = {{"r", 4}, {"lane", 8, true}};
  k.registers = {{DType::kF32, true}, {DType::kF32, true}};
  Stmt tile{.kind = StmtKind::kStoreTile, .buffer = 1};
  tile.index = {0, {{0, 2}}};
  tile.tile = {
      {0, 1}, {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15}, 2, 8};
  k.phases = {{{0, 1},
               {Load(0, 0, {0, {{0, 16}, {1, 1}}}),
                Load(1, 0, {8, {{0, 16}, {1, 1}}}), tile}}};
  return k;
}

TEST(KernelVerifyTest, AcceptsATileOfPairs) { EXPECT_EQ(Failure(Pairs()), ""); }

TEST(KernelVerifyTest, RejectsTilesThatArePoorlyOrdered) {
  Kernel k = Pairs();
  k.phases[0].body[2].tile.order[3] = 1;
  EXPECT_THAT(Failure(k), HasSubstr("has no order"));
  k = Pairs();
  k.phases[0].body[2].tile.run = 3;
  EXPECT_THAT(Failure(k), HasSubstr("has no order"));
  k = Pairs();
  k.phases[0].body[2].tile.sources = {0};
  EXPECT_THAT(Failure(k), HasSubstr("has no order"));
}

TEST(KernelVerifyTest, RejectsTilesThatMeetOrLeaveTheirBuffer) {
  Kernel k = Pairs();
  k.phases[0].body[2].index.terms[0].coefficient = 1;
  EXPECT_THAT(Failure(k), HasSubstr("several tasks of a phase meet in y"));
  k = Pairs();
  k.phases[0].body[2].index.offset = 1;
  EXPECT_THAT(Failure(k), HasSubstr("runs from 1 to 64 of 64"));
}

TEST(KernelVerifyTest, RejectsATileInAVectorAxisOfAnotherExtent) {
  Kernel k = Pairs();
  k.axes[1].extent = 7;
  EXPECT_THAT(Failure(k), HasSubstr("a tile needs a vector axis of 8"));
}

// x is too large to enumerate its elements. The axis of a task's single row has
// the same step as the axis of tasks, which must not prevent the proof.
TEST(KernelVerifyTest, ProvesLargeKernelsOfOneRowATask) {
  constexpr int64_t kTurn = 1568 * 2048;
  Kernel k;
  k.name = "rows";
  k.lanes = 2048;
  k.width = 8;
  k.buffers = {{"x", DType::kF32, 2 * kTurn},
               {"y", DType::kF32, 2 * kTurn, true}};
  k.axes = {
      {"turn", 2}, {"task", 1568}, {"row", 1, false, true}, {"c", 2048, true}};
  k.registers = {{DType::kF32, true}};
  const Index index{0, {{0, kTurn}, {1, 2048}, {2, 2048}, {3, 1}}};
  k.phases.push_back(
      {{1, 2, 3}, {Loop(0, {Load(0, 0, index), Store(1, index, 0)})}});
  EXPECT_EQ(Failure(k), "");
  k.axes[2].extent = 2;  // rows of adjacent tasks overlap
  for (KernelBuffer& buffer : k.buffers) buffer.elements += 2048;
  EXPECT_THAT(Failure(k), HasSubstr("cannot prove that tasks do not meet"));
}

TEST(KernelVerifyTest, AcceptsInterleavedStores) {
  // A concatenation: two stores of a phase are adjacent in each row.
  Kernel k;
  k.name = "concat";
  k.buffers = {{"x", DType::kF32, 30}, {"y", DType::kF32, 60, true}};
  k.axes = {{"r", 3}, {"c", 10, true}};
  k.registers = {{DType::kF32, true}};
  k.phases.push_back(
      {{0, 1},
       {Load(0, 0, {0, {{0, 10}, {1, 1}}}), Store(1, {0, {{0, 20}, {1, 1}}}, 0),
        Store(1, {10, {{0, 20}, {1, 1}}}, 0)}});
  EXPECT_EQ(Failure(k), "");
  // The coefficients prove nothing here, but even and odd rows do not overlap.
  k.phases[0].body.back().index = {19, {{0, 20}, {1, -1}}};
  EXPECT_EQ(Failure(k), "");
  k.phases[0].body.back().index = {11, {{0, 19}, {1, 1}}};
  EXPECT_THAT(Failure(k), HasSubstr("several tasks of a phase meet in y"));
}

}  // namespace
}  // namespace fusor::codegen
