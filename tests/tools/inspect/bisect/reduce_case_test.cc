#include "tools/inspect/bisect/reduce_case.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "ir/io/printer.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/verifier.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/random_graph.h"
#include "tests/testing/small_models.h"
#include "tools/inspect/bisect/draw_inputs.h"

namespace fusor::inspect {
namespace {

using ::testing::HasSubstr;

bool HasOp(const ir::Graph& graph, const std::string& op) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [&](const auto& node) { return node->op_name() == op; });
}

TestCase CaseOf(std::unique_ptr<ir::Graph> graph) {
  TestCase test_case{std::move(graph), {}};
  test_case.inputs = DrawInputs(*test_case.graph, 1);
  return test_case;
}

TEST(ReduceCaseTest, OneOpIsLeftOfANetworkAndItsTensorsShrink) {
  const TestCase original = CaseOf(test::SmallResNet());
  const TestCase reduced = ReduceCase(original, [](const TestCase& c) {
    return HasOp(*c.graph, "batch_norm_train");
  });
  EXPECT_EQ(reduced.graph->nodes().size(), 1u);
  EXPECT_EQ(reduced.graph->nodes()[0]->op_name(), "batch_norm_train");
  EXPECT_LE(reduced.graph->input(0)->type().num_elements(), 16);
}

TEST(ReduceCaseTest, StopsWithWhatItHas) {
  const auto has_relu = [](const TestCase& c) {
    return HasOp(*c.graph, "relu");
  };
  int asked = 0;
  const TestCase reduced = ReduceCase(CaseOf(test::SmallResNet()), has_relu,
                                      [&] { return ++asked > 2; });
  EXPECT_LE(asked, 20);
  EXPECT_TRUE(has_relu(reduced));
  EXPECT_GT(reduced.graph->nodes().size(), 1u);
}

TEST(ReduceCaseTest, NodesThatAreNeededTogetherStay) {
  const auto pair = [](const TestCase& c) {
    for (const auto& node : c.graph->nodes()) {
      if (node->op_name() == "relu" && node->input(0)->producer() != nullptr &&
          node->input(0)->producer()->op_name() == "add") {
        return true;
      }
    }
    return false;
  };
  const TestCase reduced = ReduceCase(CaseOf(test::SmallResNet()), pair);
  EXPECT_EQ(reduced.graph->nodes().size(), 2u) << ir::Print(*reduced.graph);
  EXPECT_TRUE(pair(reduced));
}

TEST(ReduceCaseTest, CutValuesKeepNamesAndValues) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f32[4]
    %a = exp(%x) : f32[4]
    %b = neg(%a) : f32[4]
    %c = tanh(%b) : f32[4]
    return %c as "y"
  })");
  const TestCase original = CaseOf(graph->Clone());
  const auto values =
      ir::Interpret(*graph, original.inputs, ir::EvalMode::kTyped);
  // The output must keep its value, so %b becomes an input with its value.
  const TestCase reduced = ReduceCase(original, [&](const TestCase& c) {
    if (!HasOp(*c.graph, "tanh") || c.graph->FindOutput("y") < 0) return false;
    return ir::Interpret(*c.graph, c.inputs, ir::EvalMode::kTyped)[0].data ==
           values[0].data;
  });
  ASSERT_EQ(reduced.graph->inputs().size(), 1u);
  EXPECT_EQ(reduced.graph->input(0)->name(), "b");
}

TEST(ReduceCaseTest, BypassesLinksOfAChainThatMustStay) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f32[4]
    %p = data : f32[4]
    %q = data : f32[4]
    %a = tanh(%x) : f32[4]
    %b = add(%a, %p) : f32[4]
    %c = add(%b, %q) : f32[4]
    %d = exp(%c) : f32[4]
    return %d as "loss"
  })");
  const TestCase reduced =
      ReduceCase(CaseOf(graph->Clone()), [](const auto& c) {
        // The loss must depend on x.
        const int loss = c.graph->FindOutput("loss");
        if (loss < 0 || c.graph->FindInput("x") == nullptr) return false;
        const ir::Value* value =
            c.graph->outputs()[static_cast<size_t>(loss)].value;
        while (value->producer() != nullptr)
          value = value->producer()->input(0);
        return value->name() == "x" && HasOp(*c.graph, "tanh");
      });
  EXPECT_EQ(reduced.graph->nodes().size(), 1u) << ir::Print(*reduced.graph);
  EXPECT_EQ(reduced.graph->inputs().size(), 1u);
  EXPECT_EQ(reduced.inputs.size(), 1u);
}

TEST(ReduceCaseTest, RandomGraphsStayValidAndFail) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const TestCase original =
        CaseOf(test::RandomGraph(seed, {.nodes = 30, .states = seed % 2 == 1}));
    const std::string op(
        original.graph->nodes()[seed % original.graph->nodes().size()]
            ->op_name());
    int checked = 0;
    const TestCase reduced = ReduceCase(original, [&](const TestCase& c) {
      ir::Verify(*c.graph);
      EXPECT_EQ(c.inputs.size(), c.graph->inputs().size());
      ir::Interpret(*c.graph, c.inputs, ir::EvalMode::kTyped);
      ++checked;
      return HasOp(*c.graph, op);
    });
    EXPECT_GT(checked, 1);
    EXPECT_TRUE(HasOp(*reduced.graph, op));
    EXPECT_EQ(reduced.graph->nodes().size(), 1u) << ir::Print(*reduced.graph);
  }
}

TEST(ReduceCaseTest, RejectsCandidatesThatThrow) {
  const TestCase reduced =
      ReduceCase(CaseOf(test::SmallMlp()), [](const TestCase& c) {
        FUSOR_CHECK(HasOp(*c.graph, "relu"), kGraph, "no relu");
        return true;
      });
  EXPECT_TRUE(HasOp(*reduced.graph, "relu"));
}

}  // namespace
}  // namespace fusor::inspect
