#include <gtest/gtest.h>

#include "ir/builder.h"
#include "passes/passes.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"

namespace fusor::passes {
namespace {

bool RunSimplify(ir::Graph& graph, PassOptions options = {}) {
  const test::BareTarget target;
  PassContext context(target, std::move(options));
  return Simplify(graph, context);
}

void ExpectSimplified(std::string_view before, std::string_view expected,
                      const char* file = __builtin_FILE(),
                      int line = __builtin_LINE()) {
  const testing::ScopedTrace trace(file, line, "");
  const auto graph = test::ParseOrDie(before);
  EXPECT_TRUE(RunSimplify(*graph));
  test::ExpectSameGraph(expected, *graph);
  EXPECT_FALSE(RunSimplify(*graph)) << "not a fixed point";
}

void ExpectKept(std::string_view text, const char* file = __builtin_FILE(),
                int line = __builtin_LINE()) {
  const testing::ScopedTrace trace(file, line, "");
  const auto graph = test::ParseOrDie(text);
  EXPECT_FALSE(RunSimplify(*graph));
  test::ExpectSameGraph(text, *graph);
}

// Returns a graph with inputs %x, %i and %p, these statements and one result.
std::string Body(const std::string& statements, const std::string& result) {
  return "graph g {\n"
         "  %x = data : f32[4]\n"
         "  %i = data : i32[4]\n"
         "  %p = data : bool[4]\n" +
         statements + "  return " + result + " as \"out\"\n}\n";
}

std::string Splat(const std::string& name, const std::string& dtype,
                  const std::string& value) {
  return "  %" + name + " = constant() {dtype=\"" + dtype +
         "\", shape=[4], value=[" + value + "]} : " + dtype + "[4]\n";
}

TEST(SimplifyTest, DropsOperationsThatKeepEveryBit) {
  for (const char* statement :
       {"mul(%x, %one)", "mul(%one, %x)", "div(%x, %one)", "pow(%x, %one)",
        "sub(%x, %zero)", "add(%x, %minus_zero)", "add(%minus_zero, %x)",
        "maximum(%x, %x)", "minimum(%x, %x)", "select(%p, %x, %x)",
        "select(%yes, %x, %one)", "select(%no, %one, %x)"}) {
    SCOPED_TRACE(statement);
    ExpectSimplified(
        Body(Splat("one", "f32", "1.0") + Splat("zero", "f32", "0.0") +
                 Splat("minus_zero", "f32", "-0.0") +
                 Splat("yes", "bool", "1.0") + Splat("no", "bool", "0.0") +
                 "  %y = " + statement + " : f32[4]\n",
             "%y"),
        Body("", "%x"));
  }
}

TEST(SimplifyTest, KeepsOperationsThatMayChangeABit) {
  // x + 0 is not x for x = -0, x - -0 is not x for x = -0, and x * 0 is NaN for
  // infinite x.
  for (const char* statement :
       {"add(%x, %zero)", "sub(%x, %minus_zero)", "mul(%x, %zero)",
        "sub(%x, %x)", "div(%x, %x)", "maximum(%x, %zero)"}) {
    SCOPED_TRACE(statement);
    const auto graph = test::ParseOrDie(
        Body(Splat("zero", "f32", "0.0") + Splat("minus_zero", "f32", "-0.0") +
                 "  %y = " + statement + " : f32[4]\n",
             "%y"));
    RunSimplify(*graph);
    EXPECT_NE(graph->outputs()[0].value, graph->FindInput("x"));
    EXPECT_EQ(graph->outputs()[0].value->producer()->op_name(),
              std::string_view(statement).substr(
                  0, std::string_view(statement).find('(')));
  }
}

TEST(SimplifyTest, DropsIntegerZero) {
  const std::string zero = Splat("zero", "i32", "0.0");
  ExpectSimplified(Body(zero + "  %y = add(%i, %zero) : i32[4]\n", "%y"),
                   Body("", "%i"));
  ExpectSimplified(Body(zero + "  %y = sub(%i, %zero) : i32[4]\n", "%y"),
                   Body("", "%i"));
}

TEST(SimplifyTest, DropsLogicWithConstants) {
  const std::string constants =
      Splat("yes", "bool", "1.0") + Splat("no", "bool", "0.0");
  for (const char* statement : {"and(%p, %yes)", "and(%yes, %p)", "or(%p, %no)",
                                "or(%p, %p)", "and(%p, %p)"}) {
    SCOPED_TRACE(statement);
    ExpectSimplified(
        Body(constants + "  %y = " + statement + " : bool[4]\n", "%y"),
        Body("", "%p"));
  }
  ExpectSimplified(Body(constants + "  %y = and(%p, %no) : bool[4]\n", "%y"),
                   Body(Splat("no", "bool", "0.0"), "%no"));
  ExpectSimplified(Body(constants + "  %y = or(%p, %yes) : bool[4]\n", "%y"),
                   Body(Splat("yes", "bool", "1.0"), "%yes"));
}

TEST(SimplifyTest, UndoesInvolutionsAndRepetitions) {
  const auto twice = [](const std::string& op) {
    return "  %a = " + op + "(%x) : f32[4]\n  %y = " + op + "(%a) : f32[4]\n";
  };
  ExpectSimplified(Body(twice("neg"), "%y"), Body("", "%x"));
  for (const std::string op : {"relu", "abs", "floor"}) {
    ExpectSimplified(Body(twice(op), "%y"),
                     Body("  %a = " + op + "(%x) : f32[4]\n", "%a"));
  }
  ExpectKept(Body(twice("exp"), "%y"));
  ExpectSimplified(Body("  %a = neg(%x) : f32[4]\n"
                        "  %y = abs(%a) : f32[4]\n",
                        "%y"),
                   Body("  %y = abs(%x) : f32[4]\n", "%y"));
}

TEST(SimplifyTest, SwapsTheChoicesOfAnInvertedPredicate) {
  ExpectSimplified(Body("  %q = not(%p) : bool[4]\n"
                        "  %e = exp(%x) : f32[4]\n"
                        "  %y = select(%q, %x, %e) : f32[4]\n",
                        "%y"),
                   Body("  %e = exp(%x) : f32[4]\n"
                        "  %y = select(%p, %e, %x) : f32[4]\n",
                        "%y"));
}

TEST(SimplifyTest, FoldsConstantsWhoseResultIsExact) {
  ExpectSimplified(Body(Splat("a", "f32", "1.5") + Splat("b", "f32", "2.0") +
                            "  %c = mul(%a, %b) : f32[4]\n"
                            "  %y = add(%c, %b) : f32[4]\n",
                        "%y"),
                   Body(Splat("y", "f32", "5.0"), "%y"));
}

// The exact interpreter does not round, so folding these would change its
// result.
TEST(SimplifyTest, KeepsConstantsWhoseResultIsRounded) {
  ExpectKept(Body(Splat("a", "f32", "1.0") + Splat("b", "f32", "3.0") +
                      "  %y = div(%a, %b) : f32[4]\n",
                  "%y"));
  ExpectKept(
      Body(Splat("a", "f32", "0.0") + "  %y = div(%a, %a) : f32[4]\n", "%y"));
}

TEST(SimplifyTest, FoldsIntegersAsTheyWrap) {
  ExpectSimplified(Body(Splat("a", "u8", "200.0") + Splat("b", "u8", "100.0") +
                            "  %y = add(%a, %b) : u8[4]\n",
                        "%y"),
                   Body(Splat("y", "u8", "44.0"), "%y"));
}

TEST(SimplifyTest, FoldsComparisonsAndCasts) {
  ExpectSimplified(
      Body(Splat("a", "f32", "1.0") + Splat("b", "f32", "2.0") +
               "  %c = compare(%a, %b) {direction=\"lt\"} : bool[4]\n"
               "  %y = cast(%c) {dtype=\"f16\"} : f16[4]\n",
           "%y"),
      Body(Splat("y", "f16", "1.0"), "%y"));
}

TEST(SimplifyTest, FoldsSumsOfIntegersAndExtrema) {
  const std::string reduce = " = reduce(%a) {dims=[0], kind=\"";
  ExpectSimplified(
      Body(Splat("a", "f32", "3.0") + "  %y" + reduce + "sum\"} : f32[]\n",
           "%y"),
      Body("  %y = constant() {dtype=\"f32\", shape=[], "
           "value=[12.0]} : f32[]\n",
           "%y"));
  ExpectSimplified(
      Body(Splat("a", "f32", "0.5") + "  %y" + reduce + "max\"} : f32[]\n",
           "%y"),
      Body("  %y = constant() {dtype=\"f32\", shape=[], "
           "value=[0.5]} : f32[]\n",
           "%y"));
  ExpectKept(Body(
      Splat("a", "f32", "0.5") + "  %y" + reduce + "sum\"} : f32[]\n", "%y"));
}

TEST(SimplifyTest, TurnsAConstantOfOneValueIntoASplat) {
  ExpectSimplified(Body("  %y = constant() {dtype=\"f32\", shape=[4], "
                        "value=[2.0, 2.0, 2.0, 2.0]} : f32[4]\n",
                        "%y"),
                   Body(Splat("y", "f32", "2.0"), "%y"));
}

// Also for a constant that its dtype cannot represent exactly.
// Swin's mask of shifted windows is built in this way.
TEST(SimplifyTest, MovesElementsOfSmallConstants) {
  ExpectSimplified(
      Body(Splat("a", "f32", "1.5") + Splat("b", "f32", "2.0") +
               "  %c = concat(%a, %b) {dim=0} : f32[8]\n"
               "  %s = slice(%c) {limit=[6], start=[2], stride=[1]} : f32[4]\n"
               "  %r = reshape(%s) {shape=[2,2]} : f32[2,2]\n"
               "  %t = transpose(%r) {permutation=[1,0]} : f32[2,2]\n",
           "%t"),
      Body("  %t = constant() {dtype=\"f32\", shape=[2,2], "
           "value=[1.5,2.0,1.5,2.0]} : f32[2,2]\n",
           "%t"));
  // Too large.
  const std::string large =
      "  %a = constant() {dtype=\"f32\", shape=[4096], value=[1.0]} : "
      "f32[4096]\n"
      "  %b = constant() {dtype=\"f32\", shape=[1], value=[2.0]} : f32[1]\n"
      "  %c = concat(%a, %b) {dim=0} : f32[4097]\n";
  ExpectKept(Body(large, "%c"));
}

TEST(SimplifyTest, MovesASplatThroughShapesAndLayouts) {
  ExpectSimplified(R"(graph g {
      %s = constant() {dtype="f32", shape=[16], value=[0.1]} : f32[16]
      %b = broadcast(%s) {dims=[1], shape=[2,16,3,3]} : f32[2,16,3,3]{aBcd16b}
      %t = slice(%b) {start=[0,0,0,0], limit=[1,16,3,3], stride=[1,1,1,1]}
         : f32[1,16,3,3]{aBcd16b}
      return %t as "out"
    })",
                   R"(graph g {
      %t = constant() {dtype="f32", shape=[1,16,3,3], value=[0.1]}
         : f32[1,16,3,3]{aBcd16b}
      return %t as "out"
    })");
  ExpectSimplified(R"(graph g {
      %s = constant() {dtype="f32", shape=[2,3], value=[0.1]} : f32[2,3]
      %y = copy(%s) {layout="ba"} : f32[2,3]{ba}
      return %y as "out"
    })",
                   R"(graph g {
      %y = constant() {dtype="f32", shape=[2,3], value=[0.1]} : f32[2,3]{ba}
      return %y as "out"
    })");
  ExpectSimplified(R"(graph g {
      %s = constant() {dtype="f32", shape=[2], value=[0.0]} : f32[2]
      %y = pad(%s) {low=[1], high=[0], interior=[0], value=0.0} : f32[3]
      return %y as "out"
    })",
                   R"(graph g {
      %y = constant() {dtype="f32", shape=[3], value=[0.0]} : f32[3]
      return %y as "out"
    })");
  ExpectSimplified(R"(graph g {
      %s = constant() {dtype="f32", shape=[2], value=[0.0]} : f32[2]
      %y = pad(%s) {low=[1], high=[0], interior=[0], value=1.0} : f32[3]
      return %y as "out"
    })",
                   R"(graph g {
      %y = constant() {dtype="f32", shape=[3], value=[1.0,0.0,0.0]} : f32[3]
      return %y as "out"
    })");
}

TEST(SimplifyTest, ComposesChainsOfShapeOps) {
  ExpectSimplified(R"(graph g {
      %x = data : f32[3]
      %a = broadcast(%x) {dims=[1], shape=[2,3]} : f32[2,3]
      %y = broadcast(%a) {dims=[0,3], shape=[2,5,6,3]} : f32[2,5,6,3]
      return %y as "out"
    })",
                   R"(graph g {
      %x = data : f32[3]
      %y = broadcast(%x) {dims=[3], shape=[2,5,6,3]} : f32[2,5,6,3]
      return %y as "out"
    })");
  ExpectSimplified(R"(graph g {
      %x = data : f32[2,3,4]
      %a = reshape(%x) {shape=[6,4]} : f32[6,4]
      %b = reshape(%a) {shape=[24]} : f32[24]
      %y = reshape(%b) {shape=[2,12]} : f32[2,12]
      return %y as "out"
    })",
                   R"(graph g {
      %x = data : f32[2,3,4]
      %y = reshape(%x) {shape=[2,12]} : f32[2,12]
      return %y as "out"
    })");
  ExpectSimplified(R"(graph g {
      %x = data : f32[2,3,4]
      %a = transpose(%x) {permutation=[1,2,0]} : f32[3,4,2]
      %y = transpose(%a) {permutation=[1,0,2]} : f32[4,3,2]
      return %y as "out"
    })",
                   R"(graph g {
      %x = data : f32[2,3,4]
      %y = transpose(%x) {permutation=[2,1,0]} : f32[4,3,2]
      return %y as "out"
    })");
  ExpectSimplified(R"(graph g {
      %x = data : f32[20]
      %a = slice(%x) {start=[1], limit=[20], stride=[3]} : f32[7]
      %y = slice(%a) {start=[1], limit=[6], stride=[2]} : f32[3]
      return %y as "out"
    })",
                   R"(graph g {
      %x = data : f32[20]
      %y = slice(%x) {start=[4], limit=[17], stride=[6]} : f32[3]
      return %y as "out"
    })");
}

TEST(SimplifyTest, DropsShapeOpsThatDoNothing) {
  for (const char* statement :
       {"reshape(%x) {shape=[2,3]}", "transpose(%x) {permutation=[0,1]}",
        "slice(%x) {start=[0,0], limit=[2,3], stride=[1,1]}",
        "pad(%x) {low=[0,0], high=[0,0], interior=[0,0], value=1.0}",
        "broadcast(%x) {dims=[0,1], shape=[2,3]}", "concat(%x) {dim=1}",
        "copy(%x) {layout=\"\"}"}) {
    SCOPED_TRACE(statement);
    ExpectSimplified(
        "graph g { %x = data : f32[2,3] %y = " + std::string(statement) +
            " : f32[2,3] return %y as \"out\" }",
        "graph g { %x = data : f32[2,3] return %x as \"out\" }");
  }
}

TEST(SimplifyTest, KeepsWhatChangesALayout) {
  ExpectKept(R"(graph g {
      %x = data : f32[2,3]
      %y = copy(%x) {layout="ba"} : f32[2,3]{ba}
      return %y as "out"
    })");
  ExpectKept(R"(graph g {
      %x = data : f32[2,3]
      %y = transpose(%x) {permutation=[0,1]} : f32[2,3]{ba}
      return %y as "out"
    })");
}

TEST(SimplifyTest, KeepsTheLastOfTwoCopies) {
  ExpectSimplified(R"(graph g {
      %x = data : f32[2,16,3,3]
      %a = copy(%x) {layout="acdb"} : f32[2,16,3,3]{acdb}
      %y = copy(%a) {layout="aBcd16b"} : f32[2,16,3,3]{aBcd16b}
      return %y as "out"
    })",
                   R"(graph g {
      %x = data : f32[2,16,3,3]
      %y = copy(%x) {layout="aBcd16b"} : f32[2,16,3,3]{aBcd16b}
      return %y as "out"
    })");
}

TEST(SimplifyTest, DropsACastThatLosesNothing) {
  const auto casts = [](const std::string& from, const std::string& by,
                        const std::string& to) {
    return "graph g { %x = data : " + from + "[4] %a = cast(%x) {dtype=\"" +
           by + "\"} : " + by + "[4] %y = cast(%a) {dtype=\"" + to +
           "\"} : " + to + "[4] return %y as \"out\" }";
  };
  const auto nothing = [](const std::string& from) {
    return "graph g { %x = data : " + from + "[4] return %x as \"out\" }";
  };
  const auto one = [](const std::string& from, const std::string& to) {
    return "graph g { %x = data : " + from + "[4] %y = cast(%x) {dtype=\"" +
           to + "\"} : " + to + "[4] return %y as \"out\" }";
  };
  ExpectSimplified(casts("f16", "f32", "f16"), nothing("f16"));
  ExpectSimplified(casts("bf16", "f32", "bf16"), nothing("bf16"));
  ExpectSimplified(casts("u8", "bf16", "f32"), one("u8", "f32"));
  ExpectSimplified(casts("i32", "f64", "i64"), one("i32", "i64"));
  ExpectSimplified(casts("bool", "i32", "f32"), one("bool", "f32"));
  ExpectKept(casts("f32", "f16", "f32"));
  ExpectKept(casts("f32", "bf16", "f64"));
  ExpectKept(casts("f16", "bf16", "f32"));
  ExpectKept(casts("bf16", "f16", "f32"));
  ExpectKept(casts("i32", "f32", "f64"));
  ExpectKept(casts("i64", "f64", "i64"));
  ExpectKept(casts("i32", "u8", "i32"));
  ExpectKept(casts("f32", "i32", "f32"));
}

TEST(SimplifyTest, LeavesStopGradientToAutodiff) {
  ExpectKept(Body("  %y = stop_gradient(%x) : f32[4]\n", "%y"));
}

TEST(SimplifyTest, MergesEqualNodesInEitherOrderOfOperands) {
  ExpectSimplified(Body("  %e = exp(%x) : f32[4]\n"
                        "  %f = exp(%x) : f32[4]\n"
                        "  %a = add(%e, %x) : f32[4]\n"
                        "  %b = add(%x, %f) : f32[4]\n"
                        "  %y = sub(%a, %b) : f32[4]\n",
                        "%y"),
                   Body("  %e = exp(%x) : f32[4]\n"
                        "  %a = add(%e, %x) : f32[4]\n"
                        "  %y = sub(%a, %a) : f32[4]\n",
                        "%y"));
}

TEST(SimplifyTest, KeepsTheOrderThatMatters) {
  // maximum(0, -0) and maximum(-0, 0) have different signs.
  ExpectKept(
      Body("  %e = exp(%x) : f32[4]\n"
           "  %a = maximum(%e, %x) : f32[4]\n"
           "  %b = maximum(%x, %e) : f32[4]\n"
           "  %y = sub(%a, %b) : f32[4]\n",
           "%y"));
}

TEST(SimplifyTest, MergesNodesOfSeveralResults) {
  ExpectSimplified(
      R"(graph g {
      %x = data : f32[1,1,4,4]
      %a, %i = max_pool(%x) {window=[2,2], stride=[2,2]}
             : f32[1,1,2,2], u8[1,1,2,2]
      %b, %j = max_pool(%x) {window=[2,2], stride=[2,2]}
             : f32[1,1,2,2], u8[1,1,2,2]
      return %a as "a", %j as "j"
    })",
      R"(graph g {
      %x = data : f32[1,1,4,4]
      %a, %i = max_pool(%x) {window=[2,2], stride=[2,2]}
             : f32[1,1,2,2], u8[1,1,2,2]
      return %a as "a", %i as "j"
    })");
}

TEST(SimplifyTest, NeverMergesRandomSitesOrCollectives) {
  ExpectKept(R"(graph g {
      %key = hyper_parameter : i64[]
      %step = hyper_parameter : i32[]
      %a = random(%key, %step) {shape=[4], site=0} : f32[4]
      %b = random(%key, %step) {shape=[4], site=1} : f32[4]
      %y = sub(%a, %b) : f32[4]
      return %y as "out"
    })");
  ExpectKept(R"(graph g {
      %x = data : f32[4]
      %a = all_reduce(%x) : f32[4]
      %b = all_reduce(%x) : f32[4]
      %y = sub(%a, %b) : f32[4]
      return %y as "out"
    })");
}

TEST(SimplifyTest, DropsUnusedNodesButCollectives) {
  ExpectSimplified(Body("  %a = exp(%x) : f32[4]\n"
                        "  %b = log(%a) : f32[4]\n"
                        "  %c = neg(%x) : f32[4]\n"
                        "  %d = all_reduce(%c) : f32[4]\n",
                        "%x"),
                   Body("  %c = neg(%x) : f32[4]\n"
                        "  %d = all_reduce(%c) : f32[4]\n",
                        "%x"));
}

TEST(SimplifyTest, KeepsNamesAndLocations) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[24]
      %first = reshape(%x) {shape=[6,4]} : f32[6,4] @"stem"
      %pixels = reshape(%first) {shape=[2,12]} : f32[2,12] @"head"
      %y = exp(%pixels) : f32[2,12]
      return %y as "out"
    })");
  EXPECT_TRUE(RunSimplify(*graph));
  test::ExpectSameGraph(R"(graph g {
      %x = data : f32[24]
      %pixels = reshape(%x) {shape=[2,12]} : f32[2,12] @"head"
      %y = exp(%pixels) : f32[2,12]
      return %y as "out"
    })",
                        *graph, test::Names::kCompare);
}

TEST(SimplifyTest, StopsWhenOutOfFuel) {
  const std::string text = Body(
      "  %a = neg(%x) : f32[4]\n"
      "  %b = neg(%a) : f32[4]\n"
      "  %y = exp(%b) : f32[4]\n",
      "%y");
  PassOptions options;
  options.fuel["simplify"] = 0;
  const auto kept = test::ParseOrDie(text);
  EXPECT_FALSE(RunSimplify(*kept, options));
  test::ExpectSameGraph(text, *kept);

  options.fuel["simplify"] = 1;
  const auto graph = test::ParseOrDie(text);
  EXPECT_TRUE(RunSimplify(*graph, options));
  test::ExpectSameGraph(Body("  %a = neg(%x) : f32[4]\n"
                             "  %y = exp(%x) : f32[4]\n",
                             "%y"),
                        *graph);
}

// 20,000 nodes with shared constants, duplicates and chains.
TEST(SimplifyTest, IsLinearInTheSizeOfTheGraph) {
  constexpr int kChains = 2500;
  ir::Graph graph;
  ir::Builder b(graph);
  ir::Value* x =
      graph.AddInput({ir::DType::kF32, {4}, {}}, ir::InputRole::kData, "x");
  ir::Value* sum = x;
  for (int i = 0; i < kChains; ++i) {
    ir::Value* y = b.Times(b.Neg(b.Neg(sum)), 1.0);
    y = b.Reshape(b.Reshape(y, {2, 2}), {4});
    sum = b.Plus(sum, y);
  }
  graph.AddOutput(sum, "out");
  ASSERT_EQ(graph.nodes().size(), 7 * kChains);
  const test::BareTarget target;
  PassContext context(target, {});
  EXPECT_TRUE(Simplify(graph, context));
  EXPECT_EQ(graph.nodes().size(), kChains);
  EXPECT_LE(context.counters().at("simplify_visits"), 2 * 7 * kChains);
}

}  // namespace
}  // namespace fusor::passes
