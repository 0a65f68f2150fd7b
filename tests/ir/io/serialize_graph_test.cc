#include "ir/io/serialize_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "ir/io/printer.h"
#include "ir/support/error.h"
#include "ir/support/philox.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/random_graph.h"

namespace fusor::ir {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::unique_ptr<Graph> AnyGraph(uint64_t seed, int nodes) {
  return test::RandomGraph(
      seed, {.nodes = nodes,
             .dtypes = {std::begin(kAllDTypes), std::end(kAllDTypes)},
             .layouts = true,
             .states = true,
             .fusions = true});
}

std::string DecodeError(std::string_view bytes) {
  try {
    Deserialize(bytes, "step.fusor");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    return error.what();
  }
  return "no error";
}

TEST(Serialize, RoundTripsRandomGraphs) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto graph = AnyGraph(seed, 20);
    const std::string bytes = Serialize(*graph);
    const auto read = Deserialize(bytes);
    ASSERT_TRUE(SameGraph(*graph, *read)) << Print(*graph) << Print(*read);
    ASSERT_EQ(Serialize(*read), bytes);
  }
}

TEST(Serialize, KeepsEveryAttributeBitForBit) {
  Graph graph("\xff\n");
  const double odd_nan = std::bit_cast<double>(uint64_t{0xfff0000000000123});
  graph.AddInput({DType::kF32, {}, {}}, InputRole::kStatistic, "\x80 s",
                 {{"bool", false},
                  {"int", std::numeric_limits<int64_t>::min()},
                  {"double", -0.0},
                  {"string", std::string("\0\xff\n", 3)},
                  {"ints", std::vector<int64_t>{}},
                  {"floats", std::vector<double>{}},
                  {"values", std::vector<double>{odd_nan, 0.1, 5e-324}}});
  EXPECT_TRUE(SameGraph(graph, *Deserialize(Serialize(graph))));
}

TEST(Serialize, TextAndBytesDescribeTheSameGraph) {
  const auto graph = AnyGraph(3, 30);
  const auto from_text = test::ParseOrDie(Print(*graph));
  EXPECT_EQ(Serialize(*from_text), Serialize(*graph));
}

TEST(Deserialize, SurvivesMutatedBytes) {
  int read = 0;
  int rejected = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::string bytes = Serialize(*AnyGraph(seed % 50, 8));
    const auto edits = 1 + Philox({0, 0, 0, 0}, seed)[0] % 4;
    for (uint32_t i = 0; i < edits; ++i) {
      const auto r = Philox({1, i, 0, 0}, seed);
      const size_t at = r[0] % bytes.size();
      if (r[1] % 3 == 0) {
        bytes[at] = static_cast<char>(r[2]);
      } else if (r[1] % 3 == 1) {
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << r[2] % 8));
      } else {
        bytes.erase(at, 1);
      }
    }
    try {
      Deserialize(bytes);
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

TEST(Deserialize, RejectsWhatIsNoGraph) {
  EXPECT_EQ(DecodeError("not a graph"),
            "step.fusor: not a serialised graph, or damaged");
  EXPECT_EQ(DecodeError(""), "step.fusor: expected format version 1, got 0");
}

TEST(Deserialize, NamesTheNodeThatIsWrong) {
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput({DType::kF32, {2}, {}}, InputRole::kData, "x");
  b.Neg(b.Cast(x, DType::kF64));
  std::string bytes = Serialize(graph);
  const std::string good = bytes;
  bytes.replace(bytes.find("neg"), 3, "nag");
  EXPECT_THAT(DecodeError(bytes),
              StartsWith("step.fusor: node 1: unknown op nag"));
  bytes = good;
  bytes.replace(bytes.rfind("f64"), 3, "f16");
  EXPECT_EQ(DecodeError(bytes),
            "step.fusor: node 1: neg: result 0 is declared f16[2], the op "
            "infers f64[2]");
}

TEST(Deserialize, VerifiesTheGraph) {
  Graph graph("g");
  Value* x = graph.AddInput({DType::kF32, {2}, {}}, InputRole::kWeight, "x");
  graph.AddOutput(x, "", 0);
  graph.AddOutput(x, "", 0);
  EXPECT_EQ(DecodeError(Serialize(graph)),
            "step.fusor: graph g: input %x is the alias of two outputs");
}

// Depths within and beyond protobuf's own limit.
TEST(Deserialize, DeepNestingIsRejected) {
  for (const int depth : {10, 200}) {
    auto graph = std::make_unique<Graph>();
    graph->AddOutput(Builder(*graph).Scalar(DType::kF32, 1), "");
    for (int i = 0; i < depth; ++i) {
      auto outer = std::make_unique<Graph>();
      Node* node =
          outer->AddNode("fusion", {}, {}, "", nullptr, std::move(graph));
      outer->AddOutput(node->output(), "");
      graph = std::move(outer);
    }
    EXPECT_THAT(DecodeError(Serialize(*graph)), HasSubstr("step.fusor: "))
        << depth;
  }
}

}  // namespace
}  // namespace fusor::ir
