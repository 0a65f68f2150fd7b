#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "ir/builder.h"
#include "passes/passes.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"

namespace fusor::passes {
namespace {

// Returns the number of fusion decisions for a vector with `readers` readers.
size_t Decisions(int readers) {
  ir::Graph graph("g");
  ir::Builder b(graph);
  const ir::TensorType type{ir::DType::kF32, {64}, {}};
  ir::Value* shared = graph.AddInput(type, ir::InputRole::kData, "shared");
  for (int i = 0; i < readers; ++i) {
    ir::Value* own =
        graph.AddInput(type, ir::InputRole::kData, fmt::format("own{}", i));
    graph.AddOutput(b.Relu(b.Plus(shared, own)), fmt::format("out{}", i));
  }
  const test::BareTarget target;
  PassContext context(target, {});
  EXPECT_TRUE(Fuse(graph, context));
  return context.decisions().size();
}

// Each reader gets shape ops of its own, so that kernels are independent. One
// kernel must not store their equal results twice.
TEST(Fuse, AKernelStoresEqualCopiesOnce) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f32[3,4,4]
    %w = data : f32[4,4]
    %e = exp(%x) : f32[3,4,4]
    %s = slice(%e) {limit=[2,4,4], start=[1,0,0], stride=[1,1,1]} : f32[1,4,4]
    %r = reshape(%s) {shape=[4,4]} : f32[4,4]
    %t = transpose(%r) {permutation=[1,0]} : f32[4,4]
    %m = matmul(%t, %w) : f32[4,4]
    %n = matmul(%w, %t) : f32[4,4]
    return %m as "m", %n as "n", %e as "e"
  })");
  const test::BareTarget target;
  PassContext context(target, {});
  EXPECT_TRUE(Fuse(*graph, context));
  const ir::Node* m = graph->outputs()[0].value->producer();
  const ir::Node* n = graph->outputs()[1].value->producer();
  EXPECT_EQ(m->input(0), n->input(1));
}

// Three readers take parts of a masked bias: they mask it themselves, instead
// of a kernel before them.
TEST(Fuse, EveryReaderSelectsByIndices) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f32[8]
    %w = data : f32[4]
    %i = iota() {dim=0, dtype="i32", shape=[8]} : i32[8]
    %5 = constant() {dtype="i32", shape=[8], value=[5.0]} : i32[8]
    %2 = constant() {dtype="i32", shape=[8], value=[2.0]} : i32[8]
    %lt = compare(%i, %5) {direction="lt"} : bool[8]
    %ge = compare(%i, %2) {direction="ge"} : bool[8]
    %p = and(%lt, %ge) : bool[8]
    %z = constant() {dtype="f32", shape=[8], value=[0.0]} : f32[8]
    %s = select(%p, %z, %x) : f32[8]
    %a = slice(%s) {limit=[4], start=[0], stride=[1]} : f32[4]
    %b = slice(%s) {limit=[8], start=[4], stride=[1]} : f32[4]
    %y = add(%a, %w) : f32[4]
    %v = mul(%b, %w) : f32[4]
    return %y as "y", %v as "v"
  })");
  const test::BareTarget target;
  PassContext context(target, {});
  EXPECT_TRUE(Fuse(*graph, context));
  EXPECT_EQ(graph->nodes().size(), 1);
}

// Returns the ops of the graph's nodes, those of fusions in parentheses.
std::string OpsAfterFusion(std::string_view text, bool eager = false) {
  const auto graph = test::ParseOrDie(text);
  const test::BareTarget target;
  PassOptions options;
  options.eager_rounding = eager;
  PassContext context(target, options);
  Fuse(*graph, context);
  std::string ops;
  for (const auto& node : graph->nodes()) {
    if (!ops.empty()) ops += ' ';
    if (node->body() == nullptr) {
      ops += node->op_name();
      continue;
    }
    ops += '(';
    for (const auto& inner : node->body()->nodes()) {
      if (ops.back() != '(') ops += ' ';
      ops += inner->op_name();
    }
    ops += ')';
  }
  return ops;
}

TEST(Fuse, PadsJoinTheirReaders) {
  EXPECT_EQ(OpsAfterFusion(R"(graph g {
    %x = data : f32[3,64]
    %y = data : f32[4,64]
    %p = pad(%x) {high=[1,0], interior=[0,0], low=[0,0]} : f32[4,64]
    %s = add(%p, %y) : f32[4,64]
    return %s as "s"
  })"),
            "(pad add)");
}

// A row is computed three times, of which two are not used.
TEST(Fuse, PadsDoNotMultiplyTheWorkBeforeThem) {
  EXPECT_EQ(OpsAfterFusion(R"(graph g {
    %x = data : f32[1,64]
    %e = exp(%x) : f32[1,64]
    %m = mul(%e, %x) : f32[1,64]
    %r = reshape(%m) {shape=[64]} : f32[64]
    %d = reshape(%r) {shape=[1,64]} : f32[1,64]
    %p = pad(%d) {high=[2,0], interior=[0,0], low=[0,0]} : f32[3,64]
    return %p as "p"
  })"),
            "(exp mul reshape reshape) (pad)");
}

TEST(Fuse, ConcatenationsJoinTheirReaders) {
  EXPECT_EQ(OpsAfterFusion(R"(graph g {
    %x = data : f32[3,64]
    %w = data : f32[2,64]
    %y = data : f32[5,64]
    %c = concat(%x, %w) {dim=0} : f32[5,64]
    %s = add(%c, %y) : f32[5,64]
    return %s as "s"
  })"),
            "(concat add)");
}

// These are written to their places; views stay views.
TEST(Fuse, AConcatenationOfViewsIsAKernelOfItsOwn) {
  EXPECT_EQ(OpsAfterFusion(R"(graph g {
    %x = data : f32[3,64]
    %w = data : f32[128]
    %m = data : f32[64,2]
    %v = reshape(%w) {shape=[2,64]} : f32[2,64]
    %c = concat(%x, %v) {dim=0} : f32[5,64]
    %y = matmul(%c, %m) : f32[5,2]
    return %y as "y"
  })"),
            "reshape (concat) matmul");
}

// Kernels of few parameters of the same shape, far apart in the graph, are one.
TEST(Fuse, SmallKernelsOfParametersAreOne) {
  EXPECT_EQ(OpsAfterFusion(R"(graph g {
    %x = data : f32[8,24]
    %a = weight : f32[24,24]
    %b = weight : f32[24,24]
    %c = weight : f32[24,4]
    %ea = exp(%a) : f32[24,24]
    %y = matmul(%x, %ea) : f32[8,24]
    %eb = tanh(%b) : f32[24,24]
    %z = matmul(%y, %eb) : f32[8,24]
    %ec = exp(%c) : f32[24,4]
    %u = matmul(%z, %ec) : f32[8,4]
    return %u as "u"
  })"),
            "(tanh exp) matmul matmul (exp) matmul");
  EXPECT_EQ(OpsAfterFusion(R"(graph g {
    %x = data : f32[8,128]
    %a = weight : f32[128,128]
    %b = weight : f32[128,128]
    %ea = exp(%a) : f32[128,128]
    %y = matmul(%x, %ea) : f32[8,128]
    %eb = exp(%b) : f32[128,128]
    %z = matmul(%y, %eb) : f32[8,128]
    return %z as "z"
  })"),
            "(exp) matmul (exp) matmul");
}

// With eager rounding, a kernel adds in the order of the reduction alone.
TEST(Fuse, PartsDoNotReorderEagerSums) {
  constexpr char kSum[] = R"(graph g {
    %x = data : f32[3,64,32]
    %w = data : f32[2,64,32]
    %c = concat(%x, %w) {dim=0} : f32[5,64,32]
    %s = reduce(%c) {dims=[1,2], kind="sum"} : f32[5]
    return %s as "s"
  })";
  EXPECT_EQ(OpsAfterFusion(kSum), "(concat reduce)");
  EXPECT_EQ(OpsAfterFusion(kSum, /*eager=*/true), "(concat) (reduce)");
}

// The transpose moves a dimension of extent 1 only.
TEST(Fuse, ChainsOfViewsAreNoKernel) {
  EXPECT_EQ(OpsAfterFusion(R"(graph g {
    %x = data : f32[8,16]
    %w = data : f32[16,2]
    %r = reshape(%x) {shape=[1,8,16]} : f32[1,8,16]
    %t = transpose(%r) {permutation=[1,0,2]} : f32[8,1,16]
    %v = reshape(%t) {shape=[8,16]} : f32[8,16]
    %y = matmul(%v, %w) : f32[8,2]
    return %y as "y"
  })"),
            "reshape transpose reshape matmul");
}

// Comparing every reader with every other took minutes for 2,000 readers.
TEST(Fuse, ReadersOfAValueAreComparedWithThoseNearThem) {
  const size_t few = Decisions(250);
  EXPECT_GT(few, 500);
  EXPECT_LT(Decisions(1000), 6 * few);
}

// Returns the number of kernels of a sum over elements gathered from a filter
// with this layout.
size_t KernelsOfAGatheredSum(std::string_view layout, bool eager) {
  const auto graph = test::ParseOrDie(fmt::format(R"(graph g {{
      %filter = data : f32[32,4,1,1]{{{}}}
      %i = data : i64[3,32]
      %picked = gather(%filter, %i, %i, %i) {{dims=[1,-1,-1,-1]}} : f32[3,32]
      %sum = reduce(%picked) {{dims=[0,1], kind="sum"}} : f32[]
      return %sum as "sum"
    }})",
                                                  layout));
  const test::BareTarget target;
  PassContext context(target, {.eager_rounding = eager});
  EXPECT_TRUE(Fuse(*graph, context));
  return graph->nodes().size();
}

// When fused, the tile of 16 would split the sum's loop over 32 elements, and
// change the order of additions.
TEST(Fuse, TilesOfOperandsDoNotReorderEagerSums) {
  EXPECT_EQ(KernelsOfAGatheredSum("Abcd16a", true), 2);
  EXPECT_EQ(KernelsOfAGatheredSum("Abcd16a", false), 1);
  EXPECT_EQ(KernelsOfAGatheredSum("abcd", true), 1);
}

// Returns the names of a graph's ops; of a fusion, also those of its body.
std::string OpsOf(const ir::Graph& graph) {
  std::string ops;
  for (const auto& node : graph.nodes()) {
    ops += ops.empty() ? "" : " ";
    ops += node->op_name();
    if (node->body() != nullptr) ops += "(" + OpsOf(*node->body()) + ")";
  }
  return ops;
}

// Fuses a graph of convolutions and a copy, and returns its ops.
std::string FusedCopy(const std::string& nodes, const PassOptions& options = {},
                      const std::string& target_name = "cpu-avx512") {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[2,32,4,4]{acdb}
      %w = weight : f32[32,32,1,1])" + nodes +
                                      "\n}");
  const test::BareTarget target(target_name);
  PassContext context(target, options);
  Fuse(*graph, context);
  return OpsOf(*graph);
}

constexpr char kCopyAfterLoop[] = R"(
      %made = relu(%x) : f32[2,32,4,4]{acdb}
      %copy = copy(%made) {layout="aBcd16b"} : f32[2,32,4,4]{aBcd16b}
      %y = conv2d(%copy, %w) : f32[2,32,4,4]{aBcd16b}
      return %y as "y")";

TEST(Fuse, AKernelStoresAnotherLayoutThanThatOfItsLoops) {
  EXPECT_EQ(FusedCopy(kCopyAfterLoop), "fusion(relu transpose) conv2d");
}

TEST(Fuse, AKernelLoadsAnotherLayoutThanThatOfItsLoops) {
  EXPECT_EQ(FusedCopy(R"(
      %made = conv2d(%x, %w) : f32[2,32,4,4]{aBcd16b}
      %copy = copy(%made) {layout="acdb"} : f32[2,32,4,4]{acdb}
      %y = add(%copy, %x) : f32[2,32,4,4]{acdb}
      return %y as "y")"),
            "conv2d fusion(transpose add)");
}

TEST(Fuse, CopiesBetweenLibraryOpsStayCopies) {
  EXPECT_EQ(FusedCopy(R"(
      %made = conv2d(%x, %w) : f32[2,32,4,4]{acdb}
      %copy = copy(%made) {layout="aBcd16b"} : f32[2,32,4,4]{aBcd16b}
      %y = conv2d(%copy, %w) : f32[2,32,4,4]{aBcd16b}
      return %y as "y")"),
            "conv2d copy conv2d");
}

TEST(Fuse, CopiesOfAnotherInnermostDimStayCopies) {
  EXPECT_EQ(FusedCopy(R"(
      %made = relu(%x) : f32[2,32,4,4]{acdb}
      %copy = copy(%made) {layout="abcd"} : f32[2,32,4,4]
      %y = conv2d(%copy, %w) : f32[2,32,4,4]
      return %y as "y")"),
            "fusion(relu) copy conv2d");
}

TEST(Fuse, CopiesToTilesThatDoNotNestStayCopies) {
  const auto fused = [](const char* layout) {
    const auto graph = test::ParseOrDie(fmt::format(R"(graph g {{
      %x = data : f32[2,96,4,4]{{aBcd48b}}
      %w = weight : f32[96,96,1,1]
      %made = relu(%x) : f32[2,96,4,4]{{aBcd48b}}
      %copy = copy(%made) {{layout="{0}"}} : f32[2,96,4,4]{{{0}}}
      %y = conv2d(%copy, %w) : f32[2,96,4,4]{{{0}}}
      return %y as "y"
    }})",
                                                    layout));
    const test::BareTarget target("cpu-avx512");
    PassContext context(target, {});
    Fuse(*graph, context);
    return OpsOf(*graph);
  };
  EXPECT_EQ(fused("aBcd16b"), "fusion(relu transpose) conv2d");
  EXPECT_EQ(fused("aBcd32b"), "fusion(relu) copy conv2d");
}

TEST(Fuse, CopiesStayCopiesOnAGpuAndWithFusionOff) {
  EXPECT_EQ(FusedCopy(kCopyAfterLoop, {}, "nvidia-h100"),
            "fusion(relu) copy conv2d");
  EXPECT_EQ(FusedCopy(kCopyAfterLoop, {.fusion = false}),
            "fusion(relu) copy conv2d");
}

}  // namespace
}  // namespace fusor::passes
