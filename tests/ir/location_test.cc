#include "ir/location.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/builder.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --- Lines -------------------------------------------------------------------

TEST(SourceLine, EqualLinesAreOneCopy) {
  const SourceLine a("models/resnet.cc", 52);
  const std::string name = "models/resnet.cc";
  const SourceLine b(name, 52);
  EXPECT_EQ(a, b);
  EXPECT_EQ(&a.file(), &b.file());
  EXPECT_NE(a, SourceLine("models/resnet.cc", 53));
  EXPECT_NE(a, SourceLine("models/vgg.cc", 52));
  EXPECT_EQ(sizeof(SourceLine), sizeof(void*));
}

TEST(SourceLine, ReadsBackFromItsText) {
  for (const SourceLine line :
       {SourceLine(), SourceLine("a.cc", 1), SourceLine("C:\\x y.cc", 20)}) {
    EXPECT_EQ(ParseSourceLine(ToString(line)), line) << ToString(line);
  }
}

TEST(SourceLine, RejectsOtherText) {
  for (const char* text : {"a.cc", ":1", "a.cc:", "a.cc:0", "a.cc:-1",
                           "a.cc:1x", "a.cc:99999999999"}) {
    try {
      ParseSourceLine(text);
      ADD_FAILURE() << "accepted " << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kGraph);
      EXPECT_THAT(e.what(), HasSubstr("expected \"FILE:LINE\""));
    }
  }
}

TEST(Location, ShowsWhatIsKnown) {
  const SourceLine line("models/resnet.cc", 52);
  EXPECT_EQ(ToString(Location("layer3.1.bn2", line)),
            "layer3.1.bn2 (models/resnet.cc:52)");
  EXPECT_EQ(AtLocation({"", line}), " at models/resnet.cc:52");
  EXPECT_EQ(AtLocation("fc"), " at fc");
  EXPECT_EQ(AtLocation({}), "");
}

// --- Lines of calls ----------------------------------------------------------

// Paths that a compiler reports for files outside of this tree.
#line 12 "/users/someone/projects/nets/mine.cc"
SourceLine Elsewhere(Where at = {}) { return at.line(); }
SourceLine Absolute() { return Elsewhere(); }
#line 20 "mine.cc"
SourceLine Bare() { return Elsewhere(); }
#line 30 "/mine.cc"
SourceLine AtTheRoot() { return Elsewhere(); }
#line 40 "../../../../../../../../../nets/mine.cc"
SourceLine Above() { return Elsewhere(); }
#line 100 "tests/ir/location_test.cc"

TEST(Where, ForgetsTheMachine) {
  EXPECT_EQ(ToString(Absolute()), "nets/mine.cc:13");
  EXPECT_EQ(ToString(Bare()), "mine.cc:20");
  EXPECT_EQ(ToString(AtTheRoot()), "mine.cc:30");
  EXPECT_EQ(ToString(Above()), "nets/mine.cc:40");
}

// --- Lines in the builder ----------------------------------------------------

struct Snippet {
  Graph graph;
  Builder b{graph};
  Value* x = graph.AddInput({DType::kF32, {2, 3}, {}}, InputRole::kData, "x");

  // Returns the lines of all nodes, without repetitions.
  std::vector<std::string> Lines() const {
    std::vector<std::string> lines;
    for (const auto& node : graph.nodes()) {
      std::string line = ToString(node->location().source);
      if (lines.empty() || lines.back() != line) lines.push_back(line);
    }
    return lines;
  }
};

Value* Double(Builder& b, Value* x, Where at = {}) {
  const Builder::Layer layer(b, at);
  const Builder::Scope scope(b, "double");
  return b.Plus(x, x);
}

Value* Quadruple(Builder& b, Value* x, Where at = {}) {
  const Builder::Layer layer(b, at);
  return Double(b, Double(b, x));
}

#line 200 "models/sample.cc"
TEST(Builder, NodesHaveTheLineOfTheCall) {
  Snippet p;
  p.b.set_location("block");
  Value* y = p.b.Relu(p.x);
  y = p.b.Times(y, 2.0);  // with its constant
  p.b.Add("neg", {y});
  EXPECT_THAT(p.Lines(),
              ElementsAre("models/sample.cc:203", "models/sample.cc:204",
                          "models/sample.cc:205"));
  EXPECT_EQ(y->producer()->location().path, "block");
}

#line 300 "models/sample.cc"
TEST(Builder, CompositesHaveTheLineOfTheirCaller) {
  Snippet p;
  Value* w =
      p.graph.AddInput({DType::kF32, {4, 3}, {}}, InputRole::kWeight, "");
  Value* v = p.graph.AddInput({DType::kF32, {4}, {}}, InputRole::kBias, "");
  Value* y = p.b.Linear(p.x, w, v);
  p.b.CrossEntropy(
      p.b.Softmax(y),
      p.graph.AddInput({DType::kI32, {2}, {}}, InputRole::kData, ""), {});
  p.b.Gelu(Quadruple(p.b, p.x));
  p.b.Neg(p.x);
  EXPECT_THAT(p.Lines(),
              ElementsAre("models/sample.cc:305", "models/sample.cc:307",
                          "models/sample.cc:306", "models/sample.cc:309",
                          "models/sample.cc:310"));
}

TEST(Builder, InheritedLocationsHoldWhereverCallsStand) {
  Snippet p;
  p.b.Inherit({"fc", SourceLine("models/vgg.cc", 9)});
  Quadruple(p.b, p.b.Exp(p.x));
  EXPECT_THAT(p.Lines(), ElementsAre("models/vgg.cc:9"));
  p.b.Inherit({"fc"});  // a graph without lines gets none
  EXPECT_TRUE(p.b.Exp(p.x)->producer()->location().source.empty());
}

#line 400 "models/sample.cc"
TEST(Builder, ShapeErrorsNameTheLine) {
  Snippet p;
  p.b.set_location("head");
  Value* y = p.graph.AddInput({DType::kF32, {7}, {}}, InputRole::kData, "y");
  const auto error = [](auto build) -> std::string {
    try {
      build();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  const std::string at = " at head (models/sample.cc:413)";
  EXPECT_THAT(error([&] { p.b.Plus(p.x, y); }), HasSubstr(at));
  const std::string next = " at head (models/sample.cc:415)";
  EXPECT_THAT(error([&] { p.b.Matmul(p.x, y); }), HasSubstr(next));
  const std::string last = " at head (models/sample.cc:417)";
  EXPECT_THAT(error([&] { p.b.CrossEntropy(y, y, {}); }), HasSubstr(last));
}

}  // namespace
}  // namespace fusor::ir
