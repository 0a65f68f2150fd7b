#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "ir/verifier.h"
#include "passes/passes.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"

namespace fusor::passes {
namespace {

// Returns a graph of two updates, with one line each in their chains.
std::string TwoUpdates(const std::array<std::string, 2>& lines) {
  std::string text = R"(graph g {
    %w0 = weight : f32[4]
    %w1 = weight : f32[2,3]
    %lr = data : f32[])";
  const std::array<std::string, 2> types = {"f32[4]", "f32[2,3]"};
  const std::array<std::string, 2> shapes = {"[4]", "[2,3]"};
  for (size_t i = 0; i < 2; ++i) {
    const std::string& type = types[i];
    const std::string n = std::to_string(i);
    text += "\n%n" + n + " = fusion(%w" + n + ", %lr) : " + type + " {" +
            "\n%w = data : " + type + "\n%lr = data : f32[]\n" + lines[i] +
            "\n%s = broadcast(%x) {dims=[], shape=" + shapes[i] +
            "} : " + type + "\n%r = mul(%w, %s) : " + type + "\nreturn %r\n}";
  }
  return text + "\nreturn %n0 as \"w0\" -> %w0, %n1 as \"w1\" -> %w1\n}";
}

// Returns the updates in the graph after the pass.
size_t Launches(const std::array<std::string, 2>& lines) {
  const auto graph = test::ParseOrDie(TwoUpdates(lines));
  const test::BareTarget target;
  PassContext context(target, {});
  FuseUpdates(*graph, context);
  ir::Verify(*graph);
  return graph->nodes().size();
}

TEST(FuseUpdates, JoinsChainsOfOtherShapes) {
  EXPECT_EQ(Launches({"%x = neg(%lr) : f32[]", "%x = neg(%lr) : f32[]"}), 1u);
}

// Each pair differs in one attribute.
TEST(FuseUpdates, KeepsChainsWithOtherAttributesApart) {
  const auto pad = [](const std::string& value) {
    return "%x = pad(%lr) {high=[], interior=[], low=[], value=" + value +
           "} : f32[]";
  };
  EXPECT_EQ(Launches({pad("1.0"), pad("1.0")}), 1u);
  EXPECT_EQ(Launches({pad("1.0"), pad("2.0")}), 2u);
  EXPECT_EQ(Launches({pad("0.0"), pad("-0.0")}), 2u);
  const auto constant = [](const std::string& value) {
    return "%c = constant() {dtype=\"f32\", shape=[], value=[" + value +
           "]} : f32[]\n%x = add(%lr, %c) : f32[]";
  };
  EXPECT_EQ(Launches({constant("1.0"), constant("1.0")}), 1u);
  EXPECT_EQ(Launches({constant("1.0"), constant("2.0")}), 2u);
  const auto select = [](const std::string& direction) {
    return "%c = compare(%lr, %lr) {direction=\"" + direction +
           "\"} : bool[]\n%n = neg(%lr) : f32[]\n"
           "%x = select(%c, %n, %lr) : f32[]";
  };
  EXPECT_EQ(Launches({select("eq"), select("eq")}), 1u);
  EXPECT_EQ(Launches({select("eq"), select("ne")}), 2u);
}

// One loop cannot store tiles of 32 and of 48 elements, which do not nest.
TEST(FuseUpdates, LeavesCopiesWhoseTilesDoNotNest) {
  const auto nodes_with = [](const std::string& layout) {
    const std::string copy = "bf16[96,4]{" + layout + "}";
    const auto graph = test::ParseOrDie(
        R"(graph g {
    %w = weight : f32[96,4]
    %a = weight_copy {init="copy", of="w", rounding="bf16"} : f32[96,4]{Ab48a}
    %b = weight_copy {init="copy", of="w", rounding="bf16"} : )" +
        copy + R"(
    %n = fusion(%w) : f32[96,4] {
      %v = data : f32[96,4]
      %r = neg(%v) : f32[96,4]
      return %r
    }
    %next_a = copy(%n) {layout="Ab48a"} : f32[96,4]{Ab48a}
    %next_b = copy(%n) {layout=")" +
        layout + R"(", result_dtype="bf16"} : )" + copy + R"(
    return %n as "w" -> %w, %next_a as "a" -> %a, %next_b as "b" -> %b
  })");
    const test::BareTarget target;
    PassContext context(target, {});
    EXPECT_TRUE(FuseUpdates(*graph, context));
    ir::Verify(*graph);
    return graph->nodes().size();
  };
  EXPECT_EQ(nodes_with("Ab16a"), 1u);
  EXPECT_EQ(nodes_with("Ab32a"), 2u);
}

// Large models need no more launches than about 24, however much work an update
// is.
TEST(FuseUpdates, JoinsManyLargeUpdates) {
  std::string text = "graph g {\n%lr = data : f32[]\n";
  std::string nodes;
  std::string outputs;
  for (int i = 0; i < 96; ++i) {
    const std::string n = std::to_string(i);
    text += "%w" + n + " = weight : f32[16777216]\n";
    nodes += "%n" + n + " = fusion(%w" + n + R"(, %lr) : f32[16777216] {
        %w = data : f32[16777216]
        %lr = data : f32[]
        %s = broadcast(%lr) {dims=[], shape=[16777216]} : f32[16777216]
        %r = mul(%w, %s) : f32[16777216]
        return %r
      })" + "\n";
    outputs += (i == 0 ? "%n" : ", %n") + n + " as \"w" + n + "\" -> %w" + n;
  }
  const auto graph =
      test::ParseOrDie(text + nodes + "return " + outputs + "\n}");
  const test::BareTarget target;
  PassContext context(target, {});
  FuseUpdates(*graph, context);
  ir::Verify(*graph);
  EXPECT_EQ(graph->nodes().size(), 24u);
}

}  // namespace
}  // namespace fusor::passes
