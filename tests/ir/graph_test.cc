#include "ir/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/builder.h"
#include "ir/op.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

using Ints = std::vector<int64_t>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

const TensorType kType{DType::kF32, {4}, {}};

template <typename Call>
Error CaughtError(Call call) {
  try {
    call();
  } catch (const Error& e) {
    return e;
  }
  return Error(ErrorCode::kInternal, "nothing was thrown");
}

std::vector<std::string> Names(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& node : graph.nodes()) {
    names.push_back(node->output()->name());
  }
  return names;
}

TEST(Graph, NodesHaveAKindAndTraits) {
  Graph graph("g");
  Value* x = graph.AddInput(kType, InputRole::kData, "x");
  const Node* relu = graph.AddNode("relu", {x}, {});
  EXPECT_EQ(relu->kind(), OpKind::kRelu);
  EXPECT_TRUE(relu->HasTrait(OpTrait::kPure));
  EXPECT_FALSE(relu->HasTrait(OpTrait::kConvolution));
  const Node* sum = graph.AddNode(OpKind::kAllReduce, {x}, {});
  EXPECT_EQ(sum->op_name(), "all_reduce");
  EXPECT_TRUE(sum->HasTrait(OpTrait::kCollective));
  EXPECT_TRUE(IsOp(relu, OpKind::kRelu));
  EXPECT_FALSE(IsOp(sum, OpKind::kRelu));
  EXPECT_FALSE(IsOp(x->producer(), OpKind::kRelu));
}

TEST(Graph, NullValuesAndUnknownOpsAreNamed) {
  Graph graph("g");
  Value* x = graph.AddInput(kType, InputRole::kData, "x");
  const Location at("fc", SourceLine("models/mine.cc", 7));
  EXPECT_STREQ(CaughtError([&] {
                 graph.AddNode("add", {x, nullptr}, {}, at);
               }).what(),
               "add at fc (models/mine.cc:7): operand 1: expected a value, got "
               "null");
  EXPECT_STREQ(
      CaughtError([&] { graph.AddNode("sigmoid", {x}, {}, at); }).what(),
      "unknown op sigmoid at fc (models/mine.cc:7)");
  EXPECT_STREQ(CaughtError([&] { graph.AddNode("rely", {x}, {}, at); }).what(),
               "unknown op rely; did you mean relu? at fc (models/mine.cc:7)");
  EXPECT_STREQ(CaughtError([&] { graph.AddOutput(nullptr, "y"); }).what(),
               "graph g: output y: expected a value, got null");
  EXPECT_EQ(CaughtError([&] { graph.AddOutput(x, "y", -2); }).code(),
            ErrorCode::kGraph);
  EXPECT_EQ(CaughtError([&] { graph.Rename(nullptr, "y"); }).code(),
            ErrorCode::kGraph);
  EXPECT_EQ(CaughtError([&] { graph.ReplaceAllUses(x, nullptr); }).code(),
            ErrorCode::kGraph);
  Node* node = graph.AddNode("neg", {x}, {}, at);
  EXPECT_EQ(CaughtError([&] { node->SetInput(0, nullptr); }).code(),
            ErrorCode::kGraph);
  EXPECT_EQ(CaughtError([&] { node->SetInput(1, x); }).code(),
            ErrorCode::kGraph);
}

// x -> neg -> abs -> exp -> output
struct Chain {
  Graph graph{"chain"};
  Builder b{graph};
  Value* x = graph.AddInput(kType, InputRole::kData, "x");
  Value* neg = b.Neg(x);
  Value* abs = b.Abs(neg);
  Value* exp = b.Exp(abs);
  Chain() { graph.AddOutput(exp, "y"); }
};

// --- Building ----------------------------------------------------------------

TEST(Graph, NamesAreUnique) {
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput(kType, InputRole::kData, "x");
  Value* again = graph.AddInput(kType, InputRole::kData, "x");
  Value* unnamed = graph.AddInput(kType, InputRole::kData, "");
  EXPECT_EQ(x->name(), "x");
  EXPECT_EQ(again->name(), "x_1");
  EXPECT_FALSE(unnamed->name().empty());
  b.Neg(x);
  b.Neg(x);
  EXPECT_THAT(Names(graph), ElementsAre("neg", "neg_1"));
}

TEST(Graph, AddNodeFillsInDefaultAttributes) {
  Graph graph;
  Builder b(graph);
  const TensorType type{DType::kF32, {2, 2}, {}};
  Value* x = graph.AddInput(type, InputRole::kData, "x");
  const Node* node = graph.AddNode("matmul", {x, x}, {});
  EXPECT_FALSE(node->attrs().Bool("transpose_a"));
  EXPECT_EQ(node->attrs().values().size(), node->op().attrs.size());
}

TEST(Graph, AddNodeRejectsBadAttributes) {
  Chain c;
  const auto add = [&](Attrs attrs) {
    return CaughtError([&] { c.graph.AddNode("cast", {c.x}, attrs); });
  };
  EXPECT_THAT(add({}).what(), HasSubstr("attribute dtype is missing"));
  EXPECT_THAT(add({{"dtype", 3.0}}).what(),
              HasSubstr("dtype: expected a string, got a float"));
  EXPECT_THAT(add({{"dtype", std::string("f32")}, {"speed", true}}).what(),
              HasSubstr("no attribute speed"));
  EXPECT_EQ(add({}).code(), ErrorCode::kGraph);
  EXPECT_EQ(c.graph.nodes().size(), 3u);
}

TEST(Graph, TransposeRejectsWhatIsNoPermutation) {
  Graph graph("g");
  Value* x = graph.AddInput({DType::kF32, {2, 3}, {}}, InputRole::kData, "x");
  for (const std::vector<int64_t>& dims : std::vector<std::vector<int64_t>>{
           {}, {0}, {0, 0}, {1, 2}, {6, 1}, {-1, 0}, {0, 1, 2}}) {
    const Attrs attrs{{"permutation", dims}};
    const Error e =
        CaughtError([&] { graph.AddNode("transpose", {x}, attrs); });
    EXPECT_EQ(e.code(), ErrorCode::kGraph);
    EXPECT_THAT(e.what(), HasSubstr("expected a permutation of 2 dimensions"));
  }
}

TEST(Graph, AddNodeErrorsNameOpTypesAndLocation) {
  Chain c;
  Value* other =
      c.graph.AddInput({DType::kF32, {5}, {}}, InputRole::kData, "z");
  const Error e = CaughtError([&] {
    c.graph.AddNode("add", {c.x, other}, {}, "layer1");
  });
  EXPECT_EQ(e.code(), ErrorCode::kGraph);
  EXPECT_THAT(e.what(), HasSubstr("add(f32[4], f32[5]) at layer1"));
  EXPECT_THAT(CaughtError([&] { c.graph.AddNode("add", {c.x}, {}); }).what(),
              HasSubstr("operands"));
  EXPECT_THAT(CaughtError([&] { c.graph.AddNode("addd", {c.x}, {}); }).what(),
              HasSubstr("did you mean add?"));
}

TEST(Graph, AddNodeRejectsResultsWithoutElements) {
  Chain c;
  const Ints negative{-2, -2};
  EXPECT_THROW(c.graph.AddNode("reshape", {c.x}, {{"shape", negative}}), Error);
  const Attrs empty{{"shape", Ints{4, 0}}, {"dims", Ints{0}}};
  EXPECT_THAT(
      CaughtError([&] { c.graph.AddNode("broadcast", {c.x}, empty); }).what(),
      HasSubstr("[4,0]: expected extents of at least 1"));
}

TEST(Graph, AddNodeInsertsBeforeAnotherNode) {
  Chain c;
  Node* node = c.graph.AddNode("tanh", {c.neg}, {}, "here", c.exp->producer());
  EXPECT_EQ(node->position(), 2);
  EXPECT_EQ(c.exp->producer()->position(), 3);
  EXPECT_EQ(node->location(), "here");
  EXPECT_THAT(Names(c.graph), ElementsAre("neg", "abs", "here.tanh", "exp"));
}

TEST(Graph, ResultsAreNamedAfterLocationAndOp) {
  Chain c;
  const auto name = [&](const char* op, const char* location) {
    return c.graph.AddNode(op, {c.x}, {}, location)->output()->name();
  };
  EXPECT_EQ(name("tanh", ""), "tanh");
  EXPECT_EQ(name("tanh", "layer1.act"), "layer1.act.tanh");
  EXPECT_EQ(name("tanh", "layer1.act"), "layer1.act.tanh_1");
  EXPECT_EQ(name("tanh", "layer2.tanh"), "layer2.tanh");
}

TEST(Graph, OutputsMayAliasInputsOnly) {
  Chain c;
  c.graph.AddOutput(c.neg, "next", 0);
  EXPECT_EQ(c.graph.outputs()[1].alias, 0);
  EXPECT_THROW(c.graph.AddOutput(c.neg, "bad", 1), Error);
}

// --- Uses --------------------------------------------------------------------

TEST(Graph, UsesFollowEveryOperandSlot) {
  Chain c;
  Value* square = c.b.Times(c.neg, c.neg);
  Node* node = square->producer();
  EXPECT_THAT(c.neg->uses(), UnorderedElementsAre(Use{c.abs->producer(), 0},
                                                  Use{node, 0}, Use{node, 1}));
  node->SetInput(1, c.x);
  EXPECT_THAT(c.neg->uses(),
              UnorderedElementsAre(Use{c.abs->producer(), 0}, Use{node, 0}));
  EXPECT_THAT(c.x->uses(),
              UnorderedElementsAre(Use{c.neg->producer(), 0}, Use{node, 1}));
}

TEST(Graph, ReplaceAllUsesRedirectsOperandsAndOutputs) {
  Chain c;
  Value* tanh = c.b.Tanh(c.x);
  c.graph.ReplaceAllUses(c.exp, tanh);
  EXPECT_EQ(c.graph.outputs()[0].value, tanh);
  c.graph.ReplaceAllUses(c.neg, c.x);
  EXPECT_EQ(c.abs->producer()->input(0), c.x);
  EXPECT_THAT(c.neg->uses(), IsEmpty());
  c.graph.ReplaceAllUses(c.x, c.x);
  EXPECT_EQ(c.x->uses().size(), 3u);
}

TEST(Graph, UnusedMeansNoNodeAndNoOutput) {
  Chain c;
  EXPECT_FALSE(c.graph.IsUnused(c.exp));
  EXPECT_TRUE(c.graph.IsOutput(c.exp));
  EXPECT_FALSE(c.graph.IsUnused(c.neg));
  EXPECT_TRUE(c.graph.IsUnused(c.b.Tanh(c.x)));
}

// --- Erasing -----------------------------------------------------------------

TEST(Graph, EraseDropsTheNodeAndItsUses) {
  Chain c;
  Value* tanh = c.b.Tanh(c.neg);
  c.graph.Erase(tanh->producer());
  EXPECT_EQ(c.graph.nodes().size(), 3u);
  EXPECT_EQ(c.neg->uses().size(), 1u);
  EXPECT_EQ(c.b.Tanh(c.x)->name(), "tanh") << "the name is free again";
}

TEST(Graph, EraseAllTakesWholeChainsInAnyOrder) {
  Chain c;
  c.graph.mutable_outputs().clear();
  c.graph.EraseAll({c.neg->producer(), c.exp->producer(), c.abs->producer()});
  EXPECT_THAT(Names(c.graph), IsEmpty());
  EXPECT_THAT(c.x->uses(), IsEmpty());
  c.graph.EraseAll({});
}

TEST(Graph, EraseRejectsWhatIsStillUsed) {
  Chain c;
  EXPECT_EQ(CaughtError([&] { c.graph.Erase(c.neg->producer()); }).code(),
            ErrorCode::kInternal);
  EXPECT_EQ(CaughtError([&] { c.graph.Erase(c.exp->producer()); }).code(),
            ErrorCode::kInternal);
}

TEST(Graph, EraseInputShiftsIndicesAndAliases) {
  Chain c;
  Value* y = c.graph.AddInput(kType, InputRole::kWeight, "y");
  Value* z = c.graph.AddInput(kType, InputRole::kWeight, "z");
  c.graph.AddOutput(c.neg, "next", 2);
  EXPECT_EQ(CaughtError([&] { c.graph.EraseInput(2); }).code(),
            ErrorCode::kInternal);
  EXPECT_EQ(CaughtError([&] { c.graph.EraseInput(0); }).code(),
            ErrorCode::kInternal);
  EXPECT_EQ(y->index(), 1);
  c.graph.EraseInput(1);
  EXPECT_EQ(z->index(), 1);
  EXPECT_EQ(c.graph.input(1), z);
  EXPECT_EQ(c.graph.outputs()[1].alias, 1);
  EXPECT_EQ(c.graph.FindInput("y"), nullptr);
}

// --- Order -------------------------------------------------------------------

TEST(Graph, ReorderMovesNodesAndChecksTheOrder) {
  Chain c;
  Value* tanh = c.b.Tanh(c.x);
  Node* n = c.neg->producer();
  Node* a = c.abs->producer();
  Node* e = c.exp->producer();
  Node* t = tanh->producer();
  c.graph.Reorder({t, n, a, e});
  EXPECT_THAT(Names(c.graph), ElementsAre("tanh", "neg", "abs", "exp"));
  EXPECT_EQ(t->position(), 0);
  EXPECT_EQ(CaughtError([&] {
              c.graph.Reorder({t, n, a});
            }).code(),
            ErrorCode::kInternal);
}

TEST(Graph, ReorderRejectsAnOrderThatIsNotTopological) {
  Chain c;
  Node* n = c.neg->producer();
  Node* a = c.abs->producer();
  Node* e = c.exp->producer();
  EXPECT_EQ(CaughtError([&] {
              c.graph.Reorder({a, n, e});
            }).code(),
            ErrorCode::kInternal);
}

TEST(Graph, SortMovesOnlyWhatMustMove) {
  Chain c;
  Value* late = c.b.Tanh(c.x);
  c.b.Floor(c.x);
  c.neg->producer()->SetInput(0, late);
  c.graph.SortTopologically();
  EXPECT_THAT(Names(c.graph),
              ElementsAre("tanh", "neg", "abs", "exp", "floor"));
  c.graph.SortTopologically();
  EXPECT_THAT(Names(c.graph),
              ElementsAre("tanh", "neg", "abs", "exp", "floor"));
}

TEST(Graph, SortNamesTheGraphOnACycle) {
  Chain c;
  c.neg->producer()->SetInput(0, c.exp);
  const Error e = CaughtError([&] { c.graph.SortTopologically(); });
  EXPECT_EQ(e.code(), ErrorCode::kGraph);
  EXPECT_THAT(e.what(), HasSubstr("graph chain: cycle"));
}

TEST(Graph, SortHandlesChainsDeeperThanTheStack) {
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput(kType, InputRole::kData, "x");
  constexpr size_t kDepth = 100000;
  Value* y = x;
  for (size_t i = 0; i < kDepth; ++i) y = b.Neg(y);
  Node* first = graph.nodes().front().get();
  Node* last = graph.nodes().back().get();
  for (size_t i = 0; i < kDepth; ++i) {  // each reads its successor instead
    graph.nodes()[i]->SetInput(
        0, i + 1 < kDepth ? graph.nodes()[i + 1]->output() : x);
  }
  graph.SortTopologically();
  EXPECT_EQ(graph.nodes().front().get(), last);
  EXPECT_EQ(graph.nodes().back().get(), first);
}

// --- Copies ------------------------------------------------------------------

// Adds one of everything that a graph can hold.
void Populate(Graph& graph) {
  Builder b(graph);
  Value* x = graph.AddInput(kType, InputRole::kData, "x");
  Value* w = graph.AddInput(kType, InputRole::kWeight, "w",
                            {{"init", std::string("constant")}});
  auto body = std::make_unique<Graph>("body");
  Builder inner(*body);
  Value* p = body->AddInput(kType, InputRole::kData, "p");
  body->AddOutput(inner.Neg(p), "q");
  b.set_location("block");
  Value* y = b.Times(x, w);
  Node* fusion =
      graph.AddNode("fusion", {y}, {}, "block.fused", nullptr, std::move(body));
  graph.AddOutput(fusion->output(), "y");
  graph.AddOutput(y, "w", 1);
}

TEST(Graph, CloneIsEqualAndIndependent) {
  Graph graph("g");
  Populate(graph);
  const auto copy = graph.Clone();
  EXPECT_TRUE(SameGraph(graph, *copy));
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    EXPECT_NE(graph.nodes()[i].get(), copy->nodes()[i].get());
    EXPECT_EQ(graph.nodes()[i]->output()->uses().size(),
              copy->nodes()[i]->output()->uses().size());
  }
  Builder(*copy).Neg(copy->input(0));
  EXPECT_FALSE(SameGraph(graph, *copy));
}

TEST(Graph, ClonesNameNewValuesAlikeAndKeepTheOrderOfUses) {
  Graph graph("g");
  Builder b(graph);
  Value* x = graph.AddInput({DType::kF32, {4}, {}}, InputRole::kData, "x");
  Value* read = b.Neg(x);
  Node* reader = b.Neg(read)->producer();
  b.Neg(read);
  reader->SetInput(0, x);
  reader->SetInput(0, read);  // now the last use
  graph.Erase(b.Neg(x)->producer());
  const auto copy = graph.Clone();
  EXPECT_EQ(Builder(*copy).Neg(copy->input(0))->name(), b.Neg(x)->name());
  Value* twin = copy->nodes()[0]->output();
  ASSERT_EQ(twin->uses().size(), 2u);
  EXPECT_EQ(twin->uses()[1].node, copy->nodes()[1].get());
}

TEST(SameGraph, SeesEveryDifference) {
  Graph base("g");
  Populate(base);
  const auto differs = [&](auto change) {
    const auto copy = base.Clone();
    change(*copy);
    return !SameGraph(base, *copy) && !SameGraph(*copy, base);
  };
  EXPECT_FALSE(differs([](Graph&) {}));
  EXPECT_TRUE(differs([](Graph& g) { g.set_name("h"); }));
  EXPECT_TRUE(differs([](Graph& g) { g.Rename(g.input(0), "z"); }));
  EXPECT_TRUE(differs([](Graph& g) {
    g.input(0)->set_type({DType::kF16, {4}, {}});
  }));
  EXPECT_TRUE(differs([](Graph& g) {
    g.nodes()[0]->output()->set_type({DType::kF32, {4}, {{0}, {{0, 2}}}});
  }));
  EXPECT_TRUE(differs([](Graph& g) { g.nodes()[0]->set_location("b"); }));
  EXPECT_TRUE(differs([](Graph& g) {
    g.nodes()[0]->set_location(
        {g.nodes()[0]->location().path, SourceLine("other.cc", 1)});
  }));
  EXPECT_TRUE(differs(
      [](Graph& g) { g.nodes()[1]->mutable_attrs().Set("kind", 1.0); }));
  EXPECT_TRUE(differs([](Graph& g) { g.nodes()[0]->SetInput(1, g.input(0)); }));
  EXPECT_TRUE(differs([](Graph& g) { g.mutable_outputs()[1].alias = 0; }));
  EXPECT_TRUE(differs([](Graph& g) { g.mutable_outputs()[1].name = "v"; }));
  EXPECT_TRUE(
      differs([](Graph& g) { g.mutable_outputs()[0].value = g.input(0); }));
  EXPECT_TRUE(differs([](Graph& g) {
    g.nodes()[1]->body()->nodes()[0]->set_location("inside");
  }));
  EXPECT_TRUE(
      differs([](Graph& g) { g.AddInput(kType, InputRole::kStatistic, "s"); }));
}

TEST(SameGraph, IgnoresNamesOnRequest) {
  Graph base("g");
  Populate(base);
  const auto copy = base.Clone();
  copy->set_name("h");
  copy->Rename(copy->nodes()[0]->output(), "product");
  EXPECT_FALSE(SameGraph(base, *copy));
  EXPECT_TRUE(SameGraph(base, *copy, /*ignore_names=*/true));
}

TEST(Attrs, EqualityIsBitForBit) {
  EXPECT_TRUE(Attrs({{"a", std::nan("")}}) == Attrs({{"a", std::nan("")}}));
  EXPECT_FALSE(Attrs({{"a", 0.0}}) == Attrs({{"a", -0.0}}));
  EXPECT_FALSE(Attrs({{"a", 1.0}}) == Attrs({{"a", int64_t{1}}}));
  EXPECT_FALSE(Attrs({{"a", 1.0}}) == Attrs({{"b", 1.0}}));
  const std::vector<double> nan{std::nan("")};
  EXPECT_TRUE(Attrs({{"a", nan}}) == Attrs({{"a", nan}}));
}

TEST(Attrs, GettersNameTheMissingOrMistypedAttribute) {
  const Attrs attrs{{"size", int64_t{3}}};
  EXPECT_EQ(attrs.Int("size"), 3);
  EXPECT_THAT(CaughtError([&] { attrs.Float("size"); }).what(),
              HasSubstr("size is not a float"));
  EXPECT_THAT(CaughtError([&] { attrs.Bool("flag"); }).what(),
              HasSubstr("flag is missing"));
}

TEST(InputRole, ParametersAndStateAreToldApart) {
  EXPECT_TRUE(IsParameter(InputRole::kNormShift));
  EXPECT_FALSE(IsParameter(InputRole::kStatistic));
  EXPECT_TRUE(IsState(InputRole::kStatistic));
  EXPECT_TRUE(IsState(InputRole::kOptimizerState));
  EXPECT_FALSE(IsState(InputRole::kHyperParameter));
  EXPECT_FALSE(IsState(InputRole::kData));
  EXPECT_EQ(InputRoleName(InputRole::kHyperParameter), "hyper_parameter");
}

}  // namespace
}  // namespace fusor::ir
