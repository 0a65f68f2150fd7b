// Updates that also write cached cast weights, and the tiles that store blocked
// copies.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "codegen/kernel/access_analysis.h"
#include "codegen/lower/layout_stores.h"
#include "codegen/lower/lower.h"
#include "ir/builder.h"
#include "ir/io/parser.h"
#include "ir/io/printer.h"
#include "ir/weight_copy.h"
#include "passes/passes.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/kernel_runner.h"
#include "tests/testing/numeric.h"
#include "tests/testing/random_graph.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::ParseLayout;

ir::TensorType Type(DType dtype, const ir::Shape& shape, const char* layout) {
  return {dtype, shape, ParseLayout(layout)};
}

// Checks that the plan's loops store every element of the tensor at the offset
// of each copy's layout.
void ExpectExact(const ir::TensorType& type,
                 const std::vector<ir::TensorType>& copies,
                 const TilePlan& plan, int64_t lanes) {
  std::map<int64_t, int64_t> logical;  // offset in the tensor -> element
  const std::vector<int64_t> offsets = PhysicalOffsets(type);
  for (size_t i = 0; i < offsets.size(); ++i) {
    logical[offsets[i]] = static_cast<int64_t>(i);
  }
  int64_t groups = 1;
  for (const TilePlan::Loop& loop : plan.loops) groups *= loop.extent;
  const int64_t size = static_cast<int64_t>(plan.vectors.size()) * lanes;
  ASSERT_EQ(groups * size, type.num_elements());
  for (size_t c = 0; c < copies.size(); ++c) {
    const std::vector<int64_t> places = PhysicalOffsets(copies[c]);
    const TileStore& tile = plan.copies[c];
    for (int64_t group = 0; group < groups; ++group) {
      int64_t from = 0;
      int64_t to = 0;
      int64_t rest = group;
      for (size_t l = plan.loops.size(); l-- > 0;) {
        const int64_t i = rest % plan.loops[l].extent;
        rest /= plan.loops[l].extent;
        from += i * plan.loops[l].stride;
        to += i * plan.loops[l].copy_strides[c];
      }
      for (int64_t e = 0; e < size; ++e) {
        const int64_t at = to + e / tile.run * tile.stride + e % tile.run;
        const int lane = tile.order[e];
        const int64_t source = from + plan.vectors[lane / lanes] + lane % lanes;
        ASSERT_EQ(places[logical.at(source)], at) << "copy " << c;
      }
    }
  }
}

TEST(PlanTiles, PairsOfRowsForTheLayoutsOfBf16) {
  for (const ir::Shape& shape :
       {ir::Shape{32, 48, 3, 3}, ir::Shape{64, 16, 1, 1}}) {
    const ir::TensorType type = Type(DType::kF32, shape, "ABcd16b16a");
    const std::vector<ir::TensorType> copies = {
        Type(DType::kBF16, shape, "ABcd8b16a2b"),
        Type(DType::kBF16, shape, "ABcd8a16b2a"),
        Type(DType::kBF16, shape, "BAcd8a16b2a")};
    const auto plan = PlanTiles(type, copies, 16);
    ASSERT_TRUE(plan.has_value());
    EXPECT_EQ(plan->vectors.size(), 2u);
    EXPECT_EQ(plan->copies[0].run, 32);
    EXPECT_EQ(plan->copies[1].run, 4);
    ExpectExact(type, copies, *plan, 16);
  }
}

TEST(PlanTiles, TransposedBlocks) {
  const ir::TensorType type = Type(DType::kF32, {16, 24}, "AB8b8a");
  const std::vector<ir::TensorType> copies = {
      Type(DType::kF32, {16, 24}, "BA8a8b")};
  const auto plan = PlanTiles(type, copies, 8);
  ASSERT_TRUE(plan.has_value());
  ExpectExact(type, copies, *plan, 8);
}

// The layouts of AMX's convolutions: those of a 1x1 and a 3x3 filter, forward
// and data gradient. The weight itself has channels last.
TEST(PlanTiles, PairsOfRowsOfAWeightWithoutTiles) {
  const ir::TensorType point = Type(DType::kF32, {128, 96, 1, 1}, "acdb");
  const std::vector<ir::TensorType> points = {
      Type(DType::kBF16, {128, 96, 1, 1}, "acdb"),
      Type(DType::kBF16, {128, 96, 1, 1}, "ABcd64a2b")};
  auto plan = PlanTiles(point, points, 16);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->vectors, (std::vector<int64_t>{0, 96}));
  EXPECT_EQ(plan->copies[1].run, 4);
  ExpectExact(point, points, *plan, 16);

  const ir::TensorType type = Type(DType::kF32, {64, 48, 3, 3}, "acdb");
  const std::vector<ir::TensorType> copies = {
      Type(DType::kBF16, {64, 48, 3, 3}, "AcdB8b32a2b"),
      Type(DType::kBF16, {64, 48, 3, 3}, "ABcd16a16b2a")};
  plan = PlanTiles(type, copies, 16);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->vectors, (std::vector<int64_t>{0, 432}));
  EXPECT_EQ(plan->copies[0].run, 4);
  EXPECT_EQ(plan->copies[1].run, 32);
  ExpectExact(type, copies, *plan, 16);
}

TEST(PlanTiles, TransposedMatrices) {
  const ir::TensorType type = Type(DType::kF32, {32, 48}, "AB16b16a");
  const std::vector<ir::TensorType> copies = {
      Type(DType::kBF16, {32, 48}, ""), Type(DType::kBF16, {32, 48}, "Ab16a")};
  const auto plan = PlanTiles(type, copies, 16);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->vectors.size(), 4u);
  ExpectExact(type, copies, *plan, 16);
}

TEST(PlanTiles, NoneWithoutCopiesOrWholeVectors) {
  const ir::TensorType type = Type(DType::kF32, {32, 24}, "");
  EXPECT_FALSE(PlanTiles(type, {}, 16));
  EXPECT_FALSE(PlanTiles(type, {Type(DType::kBF16, {32, 24}, "ba")}, 16));
  // Rows of an odd number of vectors, and an odd number of rows.
  EXPECT_FALSE(PlanTiles(Type(DType::kF32, {3, 16}, ""),
                         {Type(DType::kBF16, {3, 16}, "ba")}, 16));
}

// A weight and the layouts of its copies.
struct Row {
  ir::Shape shape;
  const char* layout;
  std::vector<const char*> copies;
};

// Weights whose copies have the same element order, are tiled, are tiled with
// transposed blocks, or otherwise; and weights without copies.
const std::vector<Row> kMixed = {
    {{5, 7}, "", {""}},
    {{32, 32, 3, 3}, "ABcd16b16a", {"ABcd8b16a2b", "ABcd8a16b2a"}},
    {{3, 5}, "", {}},
    {{9, 11}, "", {}},
    {{16, 48, 1, 1}, "ABcd16b16a", {"ABcd16b16a", "BAcd8a16b2a"}},
    {{16, 3, 3, 3}, "Acdb16a", {"", "Acdb16a"}},
};

// Returns momentum updates.
std::unique_ptr<ir::Graph> Updates(DType rounding, DType copy,
                                   const std::vector<Row>& rows = kMixed) {
  auto graph = std::make_unique<ir::Graph>("updates");
  ir::Builder b(*graph);
  ir::Value* lr = graph->AddInput({DType::kF32, {}, {}},
                                  ir::InputRole::kHyperParameter, "lr");
  for (const Row& row : rows) {
    const auto type = Type(DType::kF32, row.shape, row.layout);
    ir::Value* p = graph->AddInput(type, ir::InputRole::kWeight, "p");
    ir::Value* m = graph->AddInput(type, ir::InputRole::kOptimizerState, "m");
    ir::Value* g = graph->AddInput(type, ir::InputRole::kData, "g");
    ir::Value* m2 = b.Plus(b.Times(m, 0.9), b.Plus(g, b.Times(p, 1e-4)));
    ir::Value* rate = b.BroadcastTo(lr, row.shape);
    ir::TensorType laid = rate->type();
    laid.layout = type.layout;
    rate->set_type(laid);
    ir::Value* p2 = b.Minus(p, b.Times(m2, rate));
    graph->AddOutput(p2, p->name(), p->index());
    graph->AddOutput(m2, m->name(), m->index());
    for (const char* layout : row.copies) {
      ir::Value* next = p2;
      for (const DType dtype : {rounding, copy}) {
        if (next->type().dtype == dtype && next != p2) continue;
        next = b.Add("copy", {next},
                     {{"layout", std::string(layout)},
                      {"result_dtype", std::string(DTypeName(dtype))}})
                   ->output();
      }
      ir::Value* state =
          graph->AddInput(next->type(), ir::InputRole::kWeightCopy, "c",
                          ir::WeightCopyAttrs(p->name(), rounding));
      graph->AddOutput(next, state->name(), state->index());
    }
  }
  return graph;
}

// Fuses the updates into one kernel and compares it with the interpreter.
std::unique_ptr<ir::Graph> Joined(DType rounding, DType copy,
                                  const std::vector<Row>& rows = kMixed) {
  auto graph = Updates(rounding, copy, rows);
  const auto inputs = test::RandomInputs(*graph, 1);
  const auto expected = ir::Interpret(*graph, inputs, ir::EvalMode::kTyped);
  const test::BareTarget queries;
  passes::PassOptions options;
  options.eager_rounding = true;
  passes::PassContext context(queries, options);
  passes::Fuse(*graph, context);
  EXPECT_TRUE(passes::FuseUpdates(*graph, context));
  EXPECT_EQ(graph->nodes().size(), 1u) << ir::Print(*graph);
  const auto actual = test::RunWithKernels(*graph, inputs, queries.target());
  EXPECT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].data, expected.at(i).data) << graph->outputs()[i].name;
  }
  return graph;
}

LoweredKernel Lowered(const ir::Graph& graph) {
  return LowerFusion(*graph.nodes()[0], test::BareTarget().target());
}

void ExpectCopies(DType rounding, DType copy) {
  const LoweredKernel lowered = Lowered(*Joined(rounding, copy));
  // Contiguous tensors without copies share a phase.
  EXPECT_EQ(lowered.kernel.phases.size(), 5u);
  // Each of the three operands of six tensors may be overwritten by either
  // result.
  EXPECT_EQ(lowered.in_place.size(), 3u * 6u * 2u);
}

TEST(LowerMultiTensorUpdate, WritesCopiesInTheirLayouts) {
  ExpectCopies(DType::kBF16, DType::kBF16);
}

TEST(LowerMultiTensorUpdate, RoundsCopiesThatAreWider) {
  ExpectCopies(DType::kF16, DType::kF32);
}

// Adjacent tensors whose copies are adjacent, too, in the same order and with
// the same padded sizes.
TEST(LowerMultiTensorUpdate, OneLoopWritesCopiesThatKeepStep) {
  const std::vector<Row> rows = {{{32, 3}, "", {""}},
                                 {{8, 4, 1, 1}, "acdb", {"acdb"}},
                                 {{20}, "", {""}},
                                 {{7}, "", {""}}};
  const auto graph = Joined(DType::kBF16, DType::kBF16, rows);
  const LoweredKernel together = Lowered(*graph);
  EXPECT_EQ(together.kernel.phases.size(), 1u);
  ASSERT_EQ(together.result_spans.size(), 3u);
  EXPECT_EQ(together.result_spans.back(), (std::vector<int>{8, 9, 10, 11}));
  // Sizes are 96, 32, 32 and 32. The last copy, in bf16, is padded.
  EXPECT_EQ(together.kernel.buffers.back().elements, 192);
  graph->nodes()[0]->mutable_attrs().Set("copies_together", false);
  const LoweredKernel apart = Lowered(*graph);
  EXPECT_EQ(apart.kernel.phases.size(), 4u);
  EXPECT_EQ(apart.result_spans.size(), 2u + 4u);
}

// A buffer of a single tensor is not padded.
TEST(LowerMultiTensorUpdate, ATensorAloneHasNoPadding) {
  const LoweredKernel lowered =
      Lowered(*Joined(DType::kBF16, DType::kF32, {{{7}, "", {""}}}));
  for (const KernelBuffer& buffer : lowered.kernel.buffers) {
    EXPECT_LE(buffer.elements, 7) << buffer.name;
  }
  EXPECT_NO_THROW(CheckResults(lowered));
}

// Loops end after 7 elements, which are padded to 16 in f32 but to 32 in bf16,
// after a tensor without a copy, and before one with two.
TEST(LowerMultiTensorUpdate, ALoopEndsWhereCopiesFallOutOfStep) {
  const std::vector<Row> rows = {{{32}, "", {""}}, {{7}, "", {""}},
                                 {{32}, "", {""}}, {{32}, "", {}},
                                 {{32}, "", {""}}, {{32, 2}, "", {"", "ba"}}};
  const LoweredKernel lowered =
      Lowered(*Joined(DType::kBF16, DType::kBF16, rows));
  EXPECT_EQ(lowered.kernel.phases.size(), 5u);
  // f32 copies that are rounded to 16 bits are padded like the tensors.
  EXPECT_EQ(
      Lowered(*Joined(DType::kF16, DType::kF32, {rows[0], rows[1], rows[2]}))
          .kernel.phases.size(),
      1u);
}

// Fast rounding must not skip the rounding of f32 copies to 16 bits.
TEST(LowerMultiTensorUpdate, RoundsWideCopiesInFastModeToo) {
  const auto graph = Updates(DType::kF16, DType::kF32);
  const auto inputs = test::RandomInputs(*graph, 1);
  const test::BareTarget queries;
  passes::PassContext context(queries, {});
  passes::Fuse(*graph, context);
  passes::FuseUpdates(*graph, context);
  const auto actual = test::RunWithKernels(*graph, inputs, queries.target());
  for (size_t i = 0; i < actual.size(); ++i) {
    const int alias = graph->outputs()[i].alias;
    if (graph->inputs()[alias].role != ir::InputRole::kWeightCopy) continue;
    for (const double x : actual[i].data) {
      ASSERT_EQ(x, ir::RoundTo(DType::kF16, x));
    }
  }
}

// Updates with norms: in one task, in chunks, and with elements that do not
// fill a vector.
TEST(LowerMultiTensorUpdate, SumsEachTensorUp) {
  constexpr char kText[] = R"(graph g {
    %a = weight : f32[5,7]
    %b = weight : f32[64,3,10,10]
    %c = weight : f32[300]
    %da = data : f32[5,7]
    %db = data : f32[64,3,10,10]
    %dc = data : f32[300]
    return %da as "grad/a", %db as "grad/b", %dc as "grad/c"
  })";
  for (const char* target : {"cpu-avx2", "cpu-avx512", "nvidia-h200"}) {
    for (const char* name : {"lars", "lamb"}) {
      for (const bool eager : {false, true}) {
        SCOPED_TRACE(std::string(name) + " on " + target);
        const test::BareTarget queries(target);
        passes::PassOptions options;
        options.eager_rounding = eager;
        options.optimizer.kind = passes::ParseOptimizer(name);
        options.optimizer.weight_decay = 0.1;
        passes::PassContext context(queries, options);
        const auto graph = ir::Parse(kText);
        passes::OptimizerUpdate(*graph, context);
        passes::Simplify(*graph, context);
        std::vector<ir::Tensor> inputs = test::RandomInputs(*graph, 1);
        for (ir::Tensor& input : inputs) {
          for (double& x : input.data) x = std::abs(x);  // second moments
        }
        const auto expected =
            ir::Interpret(*graph, inputs, ir::EvalMode::kTyped);
        passes::Fuse(*graph, context);
        EXPECT_TRUE(passes::FuseUpdates(*graph, context));
        const ir::Node& update = *graph->nodes().back();
        EXPECT_EQ(update.attrs().Int("tensors"), 3);
        const LoweredKernel lowered = LowerFusion(update, queries.target());
        EXPECT_NO_THROW(CheckResults(lowered));
        // Parameters and all their state are updated in place.
        std::set<int> in_place;
        for (const auto& alias : lowered.in_place)
          in_place.insert(alias.result);
        EXPECT_EQ(in_place.size(), update.num_outputs());
        const auto actual =
            test::RunWithKernels(*graph, inputs, queries.target());
        for (size_t i = 0; i < actual.size(); ++i) {
          EXPECT_TRUE(test::AllClose(actual[i], expected[i], 1e-5, 1e-6))
              << graph->outputs()[i].name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace fusor::codegen
