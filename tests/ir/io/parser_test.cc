#include "ir/io/parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cctype>
#include <limits>
#include <string>

#include "ir/builder.h"
#include "ir/io/printer.h"
#include "ir/support/error.h"
#include "ir/support/philox.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/random_graph.h"

namespace fusor::ir {
namespace {

using test::ExpectSameGraph;
using test::Names;
using test::ParseOrDie;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ParseError(std::string_view text) {
  try {
    Parse(text, "f");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "no error";
}

// Returns the error of a statement on line 3, after %x : f32[2] and %b :
// bool[2].
std::string StatementError(const std::string& statement) {
  return ParseError("graph g { %x = data : f32[2]\n%b = data : bool[2]\n" +
                    statement + "\nreturn %x }");
}

TEST(Parser, ReadsWhatTheBuilderBuilds) {
  Graph graph("g");
  Builder b(graph);
  Value* x = graph.AddInput({DType::kF32, {2, 3}, {}}, InputRole::kData, "x");
  b.Inherit({"layer", ir::SourceLine("a b.cc", 7)});
  Value* y = b.Relu(x);
  b.Inherit({"", ir::SourceLine("c.cc", 8)});
  y = b.Neg(y);
  b.Inherit({});
  graph.AddOutput(b.Exp(y), "y");
  ExpectSameGraph(R"(
    // Comments and blanks are free.
    graph g {
      %x = data : f32[2, 3]   // the input
      %layer.relu = relu ( %x ) : f32[2,3] @ "layer" "a b.cc:7"
      %neg = neg(%layer.relu) : f32[2,3] @"" "c.cc:8"
      %exp = exp(%neg) : f32[2,3]
      return %exp as "y"
    })",
                  graph, Names::kCompare);
}

TEST(Parser, FillsInDefaultsAndTakesIntegersForFloats) {
  const auto graph = ParseOrDie(R"(graph g {
    %x = data : f32[2]
    %pad = pad(%x) {low=[1], high=[0], interior=[0], value=-1} : f32[3]
    %c = constant() {dtype="f32", shape=[2], value=[1, 2]} : f32[2]
    %zero = pad(%x) {low=[0], high=[0], interior=[0]} : f32[2]
    return %pad, %c, %zero
  })");
  EXPECT_EQ(graph->nodes()[0]->attrs().Float("value"), -1.0);
  EXPECT_EQ(graph->nodes()[1]->attrs().Floats("value"),
            (std::vector<double>{1, 2}));
  EXPECT_EQ(graph->nodes()[2]->attrs().Float("value"), 0.0);
}

TEST(Parser, TakesLayoutsAsDeclared) {
  const auto graph = ParseOrDie(R"(graph g {
    %x = data : f32[2,16,4,4]{aBcd16b}
    %v = data : f32[16]
    %w = broadcast(%v) {shape=[2,16,4,4], dims=[1]} : f32[2,16,4,4]{aBcd16b}
    %y = add(%x, %w) : f32[2,16,4,4]{aBcd16b}
    return %y as "y"
  })");
  EXPECT_EQ(ToString(graph->nodes()[0]->output()->type()),
            "f32[2,16,4,4]{aBcd16b}");
}

TEST(Parser, KeepsNamesThatTheGraphWouldGiveToOthers) {
  const std::string text = R"(graph g {
  %x = data : f32[1,1,4,4]
  %max_pool_1, %max_pool = max_pool(%x) {stride=[2,2], window=[2,2]} : f32[1,1,2,2], u8[1,1,2,2]
  %exp = relu(%max_pool_1) : f32[1,1,2,2]
  %relu = exp(%exp) : f32[1,1,2,2]
  return %relu as "y"
}
)";
  EXPECT_EQ(Print(*Parse(text)), text);
}

TEST(Parser, KeepsEveryAttributeBitForBit) {
  Graph graph;
  const double inf = std::numeric_limits<double>::infinity();
  const double odd_nan = std::bit_cast<double>(uint64_t{0xfff0000000000123});
  graph.AddInput(
      {DType::kF32, {}, {}}, InputRole::kOptimizerState, "s",
      {{"true", true},
       {"int", std::numeric_limits<int64_t>::min()},
       {"no words", std::string("\\\"\n\r\x7f\xff\x00 %", 9)},
       {"ints", std::vector<int64_t>{}},
       {"floats", std::vector<double>{}},
       {"values", std::vector<double>{0.1, -0.0, inf, -inf, odd_nan, 5e-324,
                                      std::numeric_limits<double>::quiet_NaN(),
                                      -std::numeric_limits<double>::quiet_NaN(),
                                      std::numeric_limits<double>::max()}}});
  const auto read = Parse(Print(graph));
  EXPECT_TRUE(SameGraph(graph, *read)) << Print(graph);
}

TEST(Parser, RoundTripsRandomGraphs) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto graph = test::RandomGraph(
        seed, {.dtypes = {std::begin(kAllDTypes), std::end(kAllDTypes)},
               .layouts = true,
               .states = true,
               .fusions = true});
    const std::string text = Print(*graph);
    const auto read = ParseOrDie(text);
    ASSERT_TRUE(SameGraph(*graph, *read)) << text << Print(*read);
    ASSERT_EQ(Print(*read), text);
  }
}

// Replaces some bytes by random bytes or by other parts of the text.
std::string Mutate(std::string text, uint64_t seed) {
  const auto bits = Philox({0, 0, 0, 0}, seed);
  const int edits = 1 + static_cast<int>(bits[0] % 4);
  for (int i = 0; i < edits; ++i) {
    const auto r = Philox({1, static_cast<uint32_t>(i), 0, 0}, seed);
    const size_t at = r[0] % text.size();
    switch (r[1] % 5) {
      case 0:
        text[at] = static_cast<char>(r[2]);
        break;
      case 1:
        text.erase(at, 1 + r[2] % 20);
        break;
      case 2:
        text.insert(at, text.substr(r[2] % text.size(), r[3] % 30));
        break;
      case 3:
        text.insert(at, 1, "(){}[]=,:@<>-\"%/0919"[r[2] % 20]);
        break;
      default:
        text.insert(at, std::to_string(uint64_t{r[2]} * r[3]));
    }
    if (text.empty()) return "g";
  }
  return text;
}

TEST(Parser, SurvivesMutatedText) {
  int read = 0;
  int rejected = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const auto graph = test::RandomGraph(
        seed % 50,
        {.nodes = 8, .layouts = true, .states = true, .fusions = true});
    try {
      Parse(Mutate(Print(*graph), seed));
      ++read;
    } catch (const Error& error) {
      ++rejected;
      ASSERT_EQ(error.code(), ErrorCode::kGraph) << error.what();
    }
  }
  // The test is meaningful only if both outcomes occur.
  EXPECT_GT(read, 20);
  EXPECT_GT(rejected, 1000);
}

// One op per line, each with arithmetic on its attributes.
constexpr std::string_view kGeometry = R"(graph g {
  %x = data : f32[2,8,9,9]
  %w = weight : f32[4,4,3,3]
  %s = norm_scale : f32[8]
  %c = conv2d(%x, %w) {dilation=[1,1], groups=2, pad=[1,1], stride=[2,2]} : f32[2,4,5,5]
  %dx = conv2d_grad_input(%c, %w) {groups=2, input_shape=[2,8,9,9], pad=[1,1], stride=[2,2]} : f32[2,8,9,9]
  %dw = conv2d_grad_weight(%x, %c) {groups=2, pad=[1,1], stride=[2,2], weight_shape=[4,4,3,3]} : f32[4,4,3,3]
  %m, %i = max_pool(%x) {pad=[1,1], stride=[2,2], window=[3,3]} : f32[2,8,5,5], u8[2,8,5,5]
  %dm = max_pool_grad(%m, %i) {input_shape=[2,8,9,9], pad=[1,1], stride=[2,2], window=[3,3]} : f32[2,8,9,9]
  %a = avg_pool(%x) {pad=[1,1], stride=[2,2], window=[3,3]} : f32[2,8,5,5]
  %da = avg_pool_grad(%a) {input_shape=[2,8,9,9], pad=[1,1], stride=[2,2], window=[3,3]} : f32[2,8,9,9]
  %y, %mean, %var, %mask = batch_norm_train(%x, %s, %s, %x) {relu=true, residual="add"} : f32[2,8,9,9], f32[8], f32[8], bool[2,8,9,9]
  %dy, %ds, %db, %dr = batch_norm_grad(%y, %x, %s, %s, %mean, %var, %mask) {relu=true, residual="add"} : f32[2,8,9,9], f32[8], f32[8], f32[2,8,9,9]
  %p = pad(%x) {high=[0,1,0,2], interior=[0,1,0,0], low=[1,0,0,0]} : f32[3,16,9,11]
  %l = slice(%p) {limit=[3,16,9,11], start=[0,1,2,3], stride=[1,2,3,4]} : f32[3,8,3,2]
  %r = reshape(%l) {shape=[9,16]} : f32[9,16]
  %t = matmul(%r, %r) {transpose_a=true} : f32[16,16]
  %k = copy(%x) {layout="aBcd4b"} : f32[2,8,9,9]{aBcd4b}
  %n = iota() {dim=1, dtype="i32", shape=[2,3]} : i32[2,3]
  %g = broadcast(%s) {dims=[1], shape=[2,8,3]} : f32[2,8,3]
  %o = concat(%x, %x) {dim=1} : f32[2,16,9,9]
  %z = all_reduce(%o) : f32[2,16,9,9]
  return %z
}
)";

TEST(Parser, SurvivesExtremeNumbersInAttributesAndTypes) {
  const std::string whole(kGeometry);
  ParseOrDie(whole);
  int rejected = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    if (!std::isdigit(static_cast<unsigned char>(whole[at]))) continue;
    for (const char* number : {"-1", "0", "1000003", "1048576", "1099511627776",
                               "4294967296", "4611686018427387904",
                               "9223372036854775807", "-9223372036854775808"}) {
      std::string text = whole;
      text.replace(at, 1, number);
      try {
        Parse(text);
      } catch (const Error& error) {
        ++rejected;
        ASSERT_EQ(error.code(), ErrorCode::kGraph) << error.what();
      }
    }
  }
  EXPECT_GT(rejected, 2000);
}

TEST(Parser, SurvivesEveryPrefix) {
  const std::string text = Print(
      *test::RandomGraph(7, {.nodes = 10, .states = true, .fusions = true}));
  const size_t whole = text.rfind('}');
  for (size_t size = 0; size <= whole; ++size) {
    EXPECT_THROW(Parse(text.substr(0, size)), Error) << size;
  }
}

TEST(ParserErrors, NameLineAndColumnExpectedAndGot) {
  EXPECT_EQ(ParseError("graph g {\n  %x = data f32[2]\n}"),
            "f:2:13: expected ':', got 'f32'");
  EXPECT_EQ(ParseError("graph g {\n  %x = data : f32[2]\n"),
            "f:3:1: expected %name or 'return', got the end");
  EXPECT_EQ(ParseError(""), "f:1:1: expected 'graph', got the end");
  EXPECT_EQ(ParseError("graph g { return } graph"),
            "f:1:20: expected the end, got 'graph'");
  EXPECT_EQ(ParseError("graph g { # }"), "f:1:11: unexpected '#'");
  EXPECT_EQ(ParseError("graph \"g\n\" {}"),
            "f:1:7: expected a closing '\"' on this line");
}

TEST(ParserErrors, UnknownThings) {
  EXPECT_THAT(StatementError("%y = rely(%x) : f32[2]"),
              StartsWith("f:3:6: unknown op rely; did you mean relu?"));
  EXPECT_EQ(StatementError("%y = sigmoid(%x) : f32[2]"),
            "f:3:6: unknown op sigmoid");
  EXPECT_EQ(StatementError("%y = parameter : f32[2]"),
            "f:3:6: expected an op and '(', or the role of an input, got "
            "'parameter'");
  EXPECT_EQ(StatementError("%y = relu(%z) : f32[2]"),
            "f:3:11: %z is not defined above");
  EXPECT_EQ(StatementError("%y = data : f31[2]"),
            "f:3:13: unknown dtype 'f31'");
  EXPECT_THAT(StatementError("%y = relu(%x) {alpha=1} : f32[2]"),
              HasSubstr("relu(f32[2]): no attribute alpha"));
}

TEST(ParserErrors, IntegerConstantsAreExact) {
  EXPECT_EQ(StatementError("%y = constant() {dtype=\"i32\", shape=[], "
                           "value=[0.25]} : i32[]"),
            "f:3:6: constant(): value 0.25: expected a value of i32");
}

TEST(ParserErrors, TypesThatAreNotInferred) {
  EXPECT_EQ(StatementError("%y = relu(%x) : f32[3]"),
            "f:3:6: relu: result 0 is declared f32[3], the op infers f32[2]");
  EXPECT_EQ(StatementError("%y = relu(%x) : f64[2]"),
            "f:3:6: relu: result 0 is declared f64[2], the op infers f32[2]");
  EXPECT_EQ(StatementError("%y, %z = relu(%x) : f32[2], f32[2]"),
            "f:3:10: relu: 2 results are declared, the op has 1");
  EXPECT_THAT(StatementError("%y = add(%x, %b) : f32[2] @\"here\""),
              HasSubstr("add(f32[2], bool[2]) at here: expected operands"));
  EXPECT_THAT(StatementError("%y = relu(%x) : f32[2]{aB2b}"),
              HasSubstr("a layout of 2 dimensions of a type of rank 1"));
  EXPECT_THAT(StatementError("%y = data : f32[4,6]{aB4b}"),
              HasSubstr("the tiles do not divide dimension 1"));
}

TEST(ParserErrors, WrongAttributes) {
  EXPECT_THAT(StatementError("%y = cast(%x) : f64[2]"),
              HasSubstr("attribute dtype is missing"));
  EXPECT_THAT(StatementError("%y = cast(%x) {dtype=1} : f64[2]"),
              HasSubstr("attribute dtype: expected a string, got an integer"));
  EXPECT_EQ(StatementError("%y = cast(%x) {dtype=\"f64\", dtype=1} : f64[2]"),
            "f:3:29: two attributes 'dtype'");
  EXPECT_EQ(StatementError("%y = reduce(%x) {dims=[1.5,] } : f32[]"),
            "f:3:28: expected a number, got ']'");
  // The number is too large for an integer, so it is a float.
  EXPECT_THAT(StatementError("%y = reduce(%x) {kind=\"sum\", "
                             "dims=[99999999999999999999]} : f32[]"),
              HasSubstr("expected a list of integers, got a list of floats"));
}

TEST(ParserErrors, ElidedValuesAreRejectedWithAHint) {
  Graph graph;
  graph.AddOutput(Builder(graph).Constant(DType::kF32, {3}, {1, 2, 3}), "c");
  EXPECT_THAT(ParseError(Print(graph, {.max_list = 2})),
              HasSubstr("3 values are left out here; print the graph in full"));
}

TEST(ParserErrors, HugeShapesDoNotOverflow) {
  EXPECT_THAT(StatementError("%y = data : f32[4294967296,4294967296,4]"),
              HasSubstr("more than 2^40 elements"));
  EXPECT_THAT(StatementError("%y = broadcast(%x) {dims=[0], "
                             "shape=[2,9223372036854775807]} : f32[2]"),
              HasSubstr("more than 2^40 elements"));
  EXPECT_THAT(StatementError("%y = reshape(%x) {shape=[-1,-2]} : f32[2]"),
              HasSubstr("expected extents of at least 1"));
  EXPECT_THAT(StatementError("%y = pad(%x) {low=[9223372036854775807], "
                             "high=[1], interior=[0]} : f32[2]"),
              HasSubstr("padding 9223372036854775807"));
}

TEST(ParserErrors, DeepNestingIsRejected) {
  std::string text = "graph g { ";
  for (int i = 0; i < 100000; ++i) text += "%f = fusion() : f32[] { ";
  EXPECT_THAT(ParseError(text), HasSubstr("nesting"));
}

TEST(ParserErrors, NamesAndOutputs) {
  EXPECT_EQ(StatementError("%x = relu(%x) : f32[2]"),
            "f:3:1: %x is defined twice");
  EXPECT_EQ(ParseError("graph g { %x = data : f32[2] %y = relu(%x) : f32[2] "
                       "return %y as \"y\" -> %y }"),
            "f:1:73: %y is not an input of the graph");
  EXPECT_EQ(ParseError("graph g { %x = data : f32[2] return %x as x }"),
            "f:1:43: expected the output's name, got 'x'");
}

TEST(ParserErrors, TheGraphIsVerified) {
  EXPECT_THAT(
      ParseError("graph g { %x = data : f32[2] return %x -> %x, %x -> %x }"),
      StartsWith("f:1:47: graph g: input %x is the alias of two outputs"));
}

// Errors that are found after parsing also name the line and column.
TEST(ParserErrors, VerificationNamesThePlace) {
  EXPECT_THAT(ParseError("graph g {\n"
                         "  %k = hyper_parameter : i64[]\n"
                         "  %s = hyper_parameter : i32[]\n"
                         "  %a = random(%k, %s) {shape=[2], site=1} : f32[2]\n"
                         "  %b = random(%k, %s) {shape=[2], site=1} : f32[2]\n"
                         "  return %a\n}"),
              StartsWith("f:5:8: graph g: %b = random: random site 1 is used"));
  EXPECT_THAT(
      ParseError("graph g {\n"
                 "  %x = data : f32[2]\n"
                 "  %f = fusion(%x) : f32[2] {\n"
                 "    %p = weight : f32[2]\n"
                 "    return %p\n  }\n"
                 "  return %f\n}"),
      StartsWith("f:3:8: graph g: %f = fusion: the body's input %p is"));
}

}  // namespace
}  // namespace fusor::ir
