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

}  // namespace
}  // namespace fusor::passes
