#include "codegen/kernel/bitmask.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "codegen/lower/lower.h"
#include "codegen/plan/plan_builder.h"
#include "codegen/plan/verify_plan.h"
#include "ir/support/error.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/plan_runner.h"
#include "tests/testing/random_graph.h"

namespace fusor::codegen {
namespace {

TEST(PackedBits, TheFirstElementIsTheLowestBit) {
  const std::vector<uint8_t> bools{1, 0, 1, 1, 0, 0, 0, 0, 0, 1};
  const std::vector<uint8_t> bits{0b1101, 0b10};
  EXPECT_EQ(PackBits(bools), bits);
  EXPECT_EQ(UnpackBits(bits, 10), bools);
}

// Stores one bool per lane along axis 0, "i", at the given index.
Kernel StoresAt(int64_t extent, int lanes, Index index) {
  Kernel kernel;
  kernel.lanes = lanes;
  kernel.buffers = {{"y", ir::DType::kBool, 1024, true}};
  kernel.axes = {{"i", extent, true}, {"j", 2}};
  kernel.registers = {{ir::DType::kBool, true}};
  const Stmt store{.kind = StmtKind::kStore,
                   .src = {0, -1, -1},
                   .buffer = 0,
                   .index = std::move(index)};
  kernel.phases = {{{1, 0}, {store}}};
  return kernel;
}

TEST(PackedBits, WholeBytesAreFullAlignedGroupsOfAdjacentLanes) {
  const auto whole = [](const Kernel& k) { return AccessedByWholeBytes(k, 0); };
  EXPECT_TRUE(whole(StoresAt(64, 16, {0, {{0, 1}, {1, 64}}})));
  EXPECT_TRUE(whole(StoresAt(64, 8, {8, {{0, 1}, {1, 72}}})));
  EXPECT_FALSE(whole(StoresAt(64, 4, {0, {{0, 1}, {1, 64}}})));
  EXPECT_FALSE(whole(StoresAt(60, 16, {0, {{0, 1}, {1, 64}}})));
  EXPECT_FALSE(whole(StoresAt(64, 16, {0, {{0, 2}, {1, 128}}})));
  EXPECT_FALSE(whole(StoresAt(64, 16, {4, {{0, 1}, {1, 64}}})));
  EXPECT_FALSE(whole(StoresAt(64, 16, {0, {{0, 1}, {1, 68}}})));
  EXPECT_FALSE(whole(StoresAt(64, 16, {0, {{1, 64}}})));
  // Each thread of a GPU writes whole bytes.
  Kernel threads = StoresAt(24, 64, {8, {{0, 1}, {1, 24}}});
  EXPECT_FALSE(whole(threads));
  threads.width = 8;
  EXPECT_TRUE(whole(threads));
  threads.width = 4;
  EXPECT_FALSE(whole(threads));
}

TEST(PackedBits, TheVerifierRejectsPackedBuffersAccessedByLessThanBytes) {
  Kernel kernel = StoresAt(60, 16, {0, {{0, 1}, {1, 64}}});
  kernel.name = "partial";
  kernel.phases[0].body.insert(
      kernel.phases[0].body.begin(),
      Stmt{.kind = StmtKind::kConstant, .dst = 0, .constant = 1});
  Verify(kernel);
  kernel.buffers[0].packed = true;
  EXPECT_THROW(Verify(kernel), Error);
  kernel.axes[0].extent = 64;
  Verify(kernel);
  kernel.buffers[0].dtype = ir::DType::kU8;
  EXPECT_THROW(Verify(kernel), Error);
}

// Returns masks of 4 rows: only a fusion reads %mask, %out is an output, and a
// library call reads %copied.
std::unique_ptr<ir::Graph> Masks(int columns) {
  return test::ParseOrDie(fmt::format(
      R"(
    graph masks {{
      %x = data : f32[4,{0}]
      %d = data : f32[4,{0}]
      %y, %mask, %out, %copied = fusion(%x) : f32[4,{0}], bool[4,{0}], bool[4,{0}], bool[4,{0}] graph body {{
        %p = data : f32[4,{0}]
        %z = constant() {{dtype="f32", shape=[4,{0}], value=[0.0]}} : f32[4,{0}]
        %q = mul(%p, %p) : f32[4,{0}]
        %m = compare(%p, %z) {{direction="gt"}} : bool[4,{0}]
        %n = compare(%p, %z) {{direction="lt"}} : bool[4,{0}]
        %o = compare(%p, %z) {{direction="le"}} : bool[4,{0}]
        return %q, %m, %n, %o
      }}
      %g = fusion(%d, %mask) : f32[4,{0}] graph grad {{
        %p = data : f32[4,{0}]
        %m = data : bool[4,{0}]
        %z = constant() {{dtype="f32", shape=[4,{0}], value=[0.0]}} : f32[4,{0}]
        %s = select(%m, %p, %z) : f32[4,{0}]
        return %s
      }}
      %t = copy(%copied) {{layout="ba"}} : bool[4,{0}]{{ba}}
      return %y as "y", %g as "g", %out as "out", %t as "t"
    }})",
      columns));
}

const Buffer& BufferOf(const Plan& plan, std::string_view name) {
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.name == name) return buffer;
  }
  throw std::runtime_error(fmt::format("no buffer {}", name));
}

Plan PlanOf(ir::Graph& graph, const test::FakeCompiler& compiler,
            bool interface = false) {
  LoweredNodes lowered = test::LowerAll(graph, compiler.target());
  PackBitmasks(graph, lowered, interface);
  return BuildPlan(graph, lowered, compiler);
}

TEST(PackedBits, OnlyMasksThatKernelsAloneExchangeArePacked) {
  const test::FakeCompiler compiler;
  const auto graph = Masks(64);
  const Plan plan = PlanOf(*graph, compiler);
  VerifyPlan(plan, *graph);
  EXPECT_TRUE(BufferOf(plan, "mask").packed);
  EXPECT_EQ(BufferOf(plan, "mask").bytes, 4 * 64 / 8);
  for (const char* name : {"y", "out", "copied", "g", "t"}) {
    EXPECT_FALSE(BufferOf(plan, name).packed) << name;
  }
  // x and y, then three masks of which one is a bitmask.
  EXPECT_EQ(plan.steps[0].bytes, 2 * 4 * 64 * 4 + 2 * 4 * 64 + 4 * 64 / 8);
  const auto inputs = test::RandomInputs(*graph, 1);
  const auto expected = ir::Interpret(*graph, inputs, ir::EvalMode::kTyped);
  const auto actual = test::RunPlan(plan, inputs);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].data, expected[i].data) << i;
  }
}

TEST(PackedBits, MasksOfPartialGroupsStayBytes) {
  const test::FakeCompiler compiler;
  const auto graph = Masks(61);  // 244 is not a multiple of 16 lanes
  const Plan plan = PlanOf(*graph, compiler);
  EXPECT_FALSE(BufferOf(plan, "mask").packed);
  EXPECT_EQ(BufferOf(plan, "mask").bytes, 4 * 61);
}

// An isolated step must run the same kernel as in its program.
TEST(PackedBits, InputsAndOutputsArePackedForAStepAlone) {
  const test::FakeCompiler compiler;
  const auto masks = Masks(64);
  const Plan program = PlanOf(*masks, compiler);
  const auto alone = test::ParseOrDie(R"(
    graph alone {
      %d = data : f32[4,64]
      %mask = data : bool[4,64]
      %g = fusion(%d, %mask) : f32[4,64] graph grad {
        %p = data : f32[4,64]
        %m = data : bool[4,64]
        %z = constant() {dtype="f32", shape=[4,64], value=[0.0]} : f32[4,64]
        %s = select(%m, %p, %z) : f32[4,64]
        return %s
      }
      return %g as "g"
    })");
  const auto same = [&](const Plan& plan) {
    return Print(plan.kernels[0].kernel, true) ==
           Print(program.kernels[1].kernel, true);
  };
  EXPECT_FALSE(same(PlanOf(*alone, compiler)));
  const Plan plan = PlanOf(*alone, compiler, true);
  VerifyPlan(plan, *alone);
  EXPECT_TRUE(same(plan));
  EXPECT_TRUE(BufferOf(plan, "mask").packed);
  const Plan whole = PlanOf(*masks, compiler, true);
  VerifyPlan(whole, *masks);
  EXPECT_TRUE(BufferOf(whole, "out").packed);
  EXPECT_FALSE(BufferOf(whole, "copied").packed);
}

TEST(PackedBits, PackedBuffersAreReadAsABool) {
  Buffer buffer{.type = {ir::DType::kBool, {10}, {}}, .packed = true};
  const std::vector<uint8_t> bools{1, 0, 1, 1, 0, 0, 0, 0, 0, 1};
  const std::vector<uint8_t> bits = Packed(buffer, bools);
  EXPECT_EQ(static_cast<int64_t>(bits.size()), buffer.value_bytes());
  EXPECT_EQ(Unpacked(buffer, bits), bools);
  buffer.packed = false;
  EXPECT_EQ(Packed(buffer, bools), bools);
  EXPECT_EQ(Unpacked(buffer, bools), bools);
}

}  // namespace
}  // namespace fusor::codegen
