#include "ir/verifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "ir/builder.h"
#include "ir/io/parser.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "tests/testing/random_graph.h"

namespace fusor::ir {
namespace {

using ::testing::HasSubstr;

std::string VerifyError(const Graph& graph) {
  try {
    Verify(graph);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "no error";
}

std::string VerifyError(std::string_view text) {
  try {
    Parse(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    return error.what();
  }
  return "no error";
}

TensorType Floats(Shape shape) { return {DType::kF32, std::move(shape), {}}; }

// x [2,3] -> relu -> exp -> y, at block.act.
struct Chain {
  Graph graph{"chain"};
  Value* x = graph.AddInput(Floats({2, 3}), InputRole::kData, "x");
  Node* relu = graph.AddNode("relu", {x}, {}, "block.act");
  Node* exp = graph.AddNode("exp", {relu->output()}, {}, "block.act");
  Chain() { graph.AddOutput(exp->output(), "y"); }
};

TEST(Verifier, AcceptsWhatTheBuilderBuilds) {
  Chain chain;
  EXPECT_EQ(VerifyError(chain.graph), "no error");
  EXPECT_EQ(VerifyError(Graph()), "no error");
}

TEST(Verifier, AcceptsRandomGraphsAndTheirClones) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const auto graph = test::RandomGraph(
        seed, {.layouts = true, .states = true, .fusions = true});
    EXPECT_EQ(VerifyError(*graph->Clone()), "no error");
  }
}

TEST(Verifier, NamesGraphNodeAndLocation) {
  Chain chain;
  chain.relu->output()->set_type(Floats({3, 2}));
  EXPECT_EQ(VerifyError(chain.graph),
            "graph chain: %block.act.relu = relu at block.act: result 0: "
            "expected f32[2,3], got f32[3,2]");
}

TEST(Verifier, RejectsAnOperandDefinedLater) {
  Chain chain;
  Node* late = chain.graph.AddNode("neg", {chain.x}, {});
  chain.relu->SetInput(0, late->output());
  EXPECT_THAT(VerifyError(chain.graph),
              HasSubstr("operand 0 is not defined before its use"));
}

TEST(Verifier, RejectsAnOperandOfAnotherGraph) {
  Chain chain;
  Graph other;
  Value* foreign = other.AddInput(Floats({2, 3}), InputRole::kData, "z");
  chain.relu->SetInput(0, foreign);
  EXPECT_THAT(VerifyError(chain.graph),
              HasSubstr("operand 0 is not defined before its use"));
  EXPECT_THAT(VerifyError(other), HasSubstr("%z lists a use that is none"));
}

TEST(Verifier, RejectsAnOutputOfAnotherGraph) {
  Chain chain;
  Graph other;
  chain.graph.mutable_outputs()[0].value =
      other.AddInput(Floats({2, 3}), InputRole::kData, "z");
  EXPECT_THAT(VerifyError(chain.graph),
              HasSubstr("output \"y\" is not a value of the graph"));
}

TEST(Verifier, RejectsAttributesThatTheOpDoesNotHave) {
  Chain chain;
  chain.relu->mutable_attrs().Set("alpha", 0.5);
  EXPECT_THAT(VerifyError(chain.graph),
              HasSubstr("relu at block.act: no attri"));
}

TEST(Verifier, RejectsMissingAndMistypedAttributes) {
  Graph graph;
  Value* x = graph.AddInput(Floats({2}), InputRole::kData, "x");
  Node* cast = graph.AddNode("cast", {x}, {{"dtype", std::string("f16")}});
  cast->mutable_attrs().Set("dtype", int64_t{3});
  EXPECT_THAT(VerifyError(graph),
              HasSubstr("attribute dtype: expected a string, got an integer"));
  cast->mutable_attrs().Erase("dtype");
  EXPECT_THAT(VerifyError(graph), HasSubstr("attribute dtype is missing"));
}

TEST(Verifier, RejectsADtypeThatIsNotInferred) {
  Graph graph;
  Value* x = graph.AddInput(Floats({2}), InputRole::kData, "x");
  Node* cast = graph.AddNode("cast", {x}, {{"dtype", std::string("f16")}});
  cast->output()->set_type(Floats({2}));
  EXPECT_THAT(VerifyError(graph),
              HasSubstr("result 0: expected f16[2], got f32[2]"));
}

TEST(Verifier, RejectsInvalidTypes) {
  Chain chain;
  chain.x->set_type(Floats({2, 0}));
  EXPECT_THAT(VerifyError(chain.graph), HasSubstr("extents of at least 1"));
  chain.x->set_type({DType::kF32, {2, 3}, ParseLayout("aB2b")});
  EXPECT_THAT(VerifyError(chain.graph), HasSubstr("do not divide dimension 1"));
  chain.x->set_type({DType::kF32, {2, 3}, ParseLayout("acb")});
  EXPECT_THAT(VerifyError(chain.graph), HasSubstr("layout of 3 dimensions"));
  chain.x->set_type({DType::kF32, {2, 3}, {{0, 1}, {}}});
  EXPECT_THAT(VerifyError(chain.graph),
              HasSubstr("row-major layout spelled out"));
  chain.x->set_type({DType::kF32, {2, 3}, {{1, 1}, {}}});
  EXPECT_THAT(VerifyError(chain.graph), HasSubstr("layout"));
}

TEST(Verifier, ElementwiseOpsKeepTheLayout) {
  Chain chain;
  const TensorType transposed{DType::kF32, {2, 3}, ParseLayout("ba")};
  chain.relu->output()->set_type(transposed);
  EXPECT_THAT(VerifyError(chain.graph),
              HasSubstr("expected f32[2,3], got f32[2,3]{ba}"));
  chain.x->set_type(transposed);
  EXPECT_THAT(VerifyError(chain.graph), HasSubstr("%block.act.exp = exp"));
  chain.exp->output()->set_type(transposed);
  EXPECT_EQ(VerifyError(chain.graph), "no error");
}

TEST(Verifier, BatchNormOperandsOfEqualRankShareALayout) {
  const auto text = [](std::string residual) {
    return "graph g { %x = data : f32[2,16,4,4]{acdb} %s = norm_scale : "
           "f32[16] %b = norm_shift : f32[16] %r = data : " +
           residual +
           " %y, %m, %v, %mask = batch_norm_train(%x, %s, %b, %r) {relu=true, "
           "residual=\"add\"} : f32[2,16,4,4]{acdb}, f32[16], f32[16], "
           "bool[2,16,4,4]{acdb} return %y as \"y\" }";
  };
  EXPECT_EQ(VerifyError(text("f32[2,16,4,4]{acdb}")), "no error");
  EXPECT_THAT(VerifyError(text("f32[2,16,4,4]")),
              HasSubstr("expected operands of one layout"));
}

TEST(Verifier, AllReduceOperandsAreIndependent) {
  EXPECT_EQ(
      VerifyError("graph g { %a = data : f32[2,4]{ba} %b = data : f32[2,4] "
                  "%x, %y = all_reduce(%a, %b) : f32[2,4]{ba}, f32[2,4] "
                  "return %x, %y }"),
      "no error");
  EXPECT_THAT(VerifyError("graph g { %a = data : f32[2,4]{ba} "
                          "%x = all_reduce(%a) : f32[2,4] return %x }"),
              HasSubstr("expected f32[2,4]{ba}, got f32[2,4]"));
}

TEST(Verifier, RowMajorOpsAreRowMajor) {
  EXPECT_THAT(VerifyError("graph g { %a = data : f32[2,4]{ba} "
                          "%x = reshape(%a) {shape=[8]} : f32[8] return %x }"),
              HasSubstr("expected row-major operands and results, got "
                        "f32[2,4]{ba}"));
  EXPECT_THAT(VerifyError("graph g { %a = data : f32[8] %x = reshape(%a) "
                          "{shape=[2,4]} : f32[2,4]{ba} return %x }"),
              HasSubstr("expected row-major operands and results"));
}

TEST(Verifier, OrderedOpsHaveNoTiles) {
  EXPECT_EQ(VerifyError("graph g { %a = data : f32[2,4]{ba} "
                        "%b = data : f32[4,3] %x = matmul(%a, %b) : "
                        "f32[2,3]{ba} return %x }"),
            "no error");
  EXPECT_THAT(VerifyError("graph g { %a = data : f32[2,4]{aB2b} "
                          "%b = data : f32[4,3] %x = matmul(%a, %b) : "
                          "f32[2,3] return %x }"),
              HasSubstr("expected operands and results without tiles, got "
                        "f32[2,4]{aB2b}"));
}

TEST(Verifier, CopyObeysItsLayoutAttribute) {
  EXPECT_EQ(VerifyError("graph g { %a = data : f32[2,4] %x = copy(%a) "
                        "{layout=\"ba\"} : f32[2,4]{ba} return %x }"),
            "no error");
  EXPECT_THAT(VerifyError("graph g { %a = data : f32[2,4] %x = copy(%a) "
                          "{layout=\"ba\"} : f32[2,4] return %x }"),
              HasSubstr("expected f32[2,4]{ba}, got f32[2,4]"));
}

TEST(Verifier, ConvolutionsAndBroadcastsTakeAnyLayout) {
  EXPECT_EQ(
      VerifyError("graph g { %x = data : f32[1,16,4,4]{aBcd16b} %w = weight "
                  ": f32[16,16,1,1]{ABcd16b16a} %v = data : f32[16] "
                  "%y = conv2d(%x, %w) : f32[1,16,4,4]{aBcd16b} "
                  "%b = broadcast(%v) {dims=[1], shape=[1,16,4,4]} : "
                  "f32[1,16,4,4]{acdb} return %y, %b }"),
      "no error");
}

TEST(Verifier, AnAliasHasTheTypeOfItsInput) {
  Chain chain;
  chain.graph.mutable_outputs()[0].alias = 0;
  EXPECT_EQ(VerifyError(chain.graph), "no error");
  chain.graph.mutable_outputs()[0].alias = 1;
  EXPECT_THAT(VerifyError(chain.graph), HasSubstr("alias of input 1 of 1"));
  Value* w = chain.graph.AddInput(Floats({3}), InputRole::kWeight, "w");
  EXPECT_THAT(VerifyError(chain.graph),
              HasSubstr("output \"y\" is f32[2,3], its alias %w is f32[3]"));
  w->set_type(Floats({2, 3}));
  chain.graph.AddOutput(chain.relu->output(), "z", 1);
  EXPECT_THAT(VerifyError(chain.graph),
              HasSubstr("input %w is the alias of two outputs"));
}

TEST(Verifier, OutputNamesAreUnique) {
  Chain chain;
  chain.graph.AddOutput(chain.relu->output(), "y");
  EXPECT_THAT(VerifyError(chain.graph), HasSubstr("two outputs \"y\""));
}

constexpr std::string_view kRandoms = R"(graph g {
  %key = hyper_parameter : i64[]
  %step = hyper_parameter : i32[]
  %a = random(%key, %step) {shape=[2], site=0} : f32[2]
  %f = fusion(%key, %step) : f32[2] {
    %k = data : i64[]
    %s = data : i32[]
    %r = random(%k, %s) {shape=[2], site=SITE} : f32[2]
    return %r
  }
  return %a, %f
})";

TEST(Verifier, RandomSitesAreUniqueAcrossBodies) {
  std::string text(kRandoms);
  text.replace(text.find("SITE"), 4, "1");
  EXPECT_EQ(VerifyError(text), "no error");
  text = kRandoms;
  text.replace(text.find("SITE"), 4, "0");
  EXPECT_THAT(VerifyError(text), HasSubstr("random site 0 is used twice"));
}

// Returns the error of a fusion of %x : f32[2] with this body.
std::string FusionError(std::string_view body) {
  return VerifyError(
      "graph g { %x = data : f32[2] %f = fusion(%x) : f32[2] @\"m\""
      " { " +
      std::string(body) + " } return %f }");
}

TEST(Verifier, BodiesCorrespondToTheirFusion) {
  EXPECT_EQ(FusionError("%p = data : f32[2] return %p"), "no error");
  EXPECT_THAT(FusionError("%p = data : f32[2]{a} %q = data : f32[2] return %p"),
              HasSubstr("%f = fusion at m: a body of 2 inputs, 1 operands"));
  EXPECT_THAT(FusionError("%p = data : f64[2] %q = cast(%p) {dtype=\"f32\"} : "
                          "f32[2] return %q"),
              HasSubstr("operand 0 is f32[2], the body's input f64[2]"));
  EXPECT_THAT(FusionError("%p = weight : f32[2] return %p"),
              HasSubstr("the body's input %p is not plain data"));
  EXPECT_THAT(FusionError("%p = data {a=1} : f32[2] return %p"),
              HasSubstr("the body's input %p is not plain data"));
  EXPECT_THAT(FusionError("%p = data : f32[2] return %p -> %p"),
              HasSubstr("an alias inside a body"));
}

TEST(Verifier, BodiesHoldOnlyPureOpsWithoutBodies) {
  EXPECT_THAT(FusionError("%p = data : f32[2] %q = all_reduce(%p) : f32[2] "
                          "return %q"),
              HasSubstr("all_reduce inside a body"));
  EXPECT_THAT(FusionError("%p = data : f32[2] %q = fusion(%p) : f32[2] { %r = "
                          "data : f32[2] return %r } return %q"),
              HasSubstr("fusion inside a body"));
}

TEST(Verifier, BodiesAreVerified) {
  Graph graph("g");
  Value* x = graph.AddInput(Floats({2}), InputRole::kData, "x");
  auto body = std::make_unique<Graph>();
  Value* p = body->AddInput(Floats({2}), InputRole::kData, "p");
  Node* inner = body->AddNode("relu", {p}, {}, "deep");
  body->AddOutput(inner->output(), "");
  graph.AddOutput(
      graph.AddNode("fusion", {x}, {}, "m", nullptr, std::move(body))->output(),
      "y");
  EXPECT_EQ(VerifyError(graph), "no error");
  inner->mutable_attrs().Set("alpha", 0.5);
  EXPECT_EQ(VerifyError(graph),
            "graph g: body of %m.fusion = fusion at m: %deep.relu = relu at "
            "deep: no attribute alpha");
}

TEST(Verifier, AFusionWithoutResultsIsRejected) {
  Graph graph("g");
  graph.AddNode("fusion", {}, {}, "", nullptr, std::make_unique<Graph>());
  EXPECT_THAT(VerifyError(graph), HasSubstr("a node without results"));
}

}  // namespace
}  // namespace fusor::ir
