#include "codegen/plan/copy_insertion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codegen/plan/schedule.h"
#include "ir/io/printer.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/plan_runner.h"

namespace fusor::codegen {
namespace {

using ::testing::ElementsAre;

class CopyInsertionTest : public ::testing::Test {
 protected:
  // Inserts copies into the graph of `text`. Returns the graph's text.
  std::string Inserted(const std::string& text) {
    graph_ = test::ParseOrDie(text);
    const test::FakeCompiler compiler;
    constraints_ = InsertCopies(*graph_, Schedule(*graph_),
                                test::LowerAll(*graph_, compiler.target()),
                                /*state=*/nullptr);
    return ir::Print(*graph_);
  }

  // Returns the names of the steps, in order.
  std::vector<std::string> Steps() const {
    std::vector<std::string> names;
    for (const ir::Node* node : constraints_.steps) {
      names.push_back(node->output()->name());
    }
    return names;
  }

  BufferPlacement PlaceOf(std::string_view name) const {
    for (const auto& [value, place] : constraints_.placements) {
      if (value->name() == name) return place;
    }
    throw std::runtime_error("no value " + std::string(name));
  }

  std::unique_ptr<ir::Graph> graph_;
  BufferConstraints constraints_;
};

TEST_F(CopyInsertionTest, AddsNothingToAStepThatUpdatesInPlace) {
  const std::string text = R"(graph g {
  %x = data : f32[8]
  %w = weight : f32[8]
  %new = exp(%x) : f32[8]
  %late = mul(%w, %x) : f32[8]
  return %late as "y", %new as "w" -> %w
})";
  EXPECT_EQ(Inserted(text), ir::Print(*test::ParseOrDie(text)));
  EXPECT_THAT(Steps(), ElementsAre("late", "new"));
  EXPECT_EQ(PlaceOf("new").arena, kStateArena);
  EXPECT_EQ(PlaceOf("new").overwrites, graph_->FindInput("w"));
  EXPECT_EQ(PlaceOf("late").arena, kOutputArena);
}

TEST_F(CopyInsertionTest, CopiesNewStateLastIfItsOldValueIsReadAfterIt) {
  EXPECT_EQ(Inserted(R"(
    graph g {
      %x = data : f32[8]
      %w = weight : f32[8]
      %new = sub(%w, %x) : f32[8]
      %both = mul(%w, %new) : f32[8]
      return %both as "y", %new as "w" -> %w
    })"),
            R"(graph g {
  %x = data : f32[8]
  %w = weight : f32[8]
  %new = sub(%w, %x) : f32[8]
  %new.copy = copy(%new) {layout=""} : f32[8]
  %both = mul(%w, %new) : f32[8]
  return %both as "y", %new.copy as "w" -> %w
}
)");
  EXPECT_THAT(Steps(), ElementsAre("new", "both", "new.copy"));
  EXPECT_EQ(PlaceOf("new").arena, kTemporaryArena);
  EXPECT_EQ(PlaceOf("new.copy").overwrites, graph_->FindInput("w"));
}

TEST_F(CopyInsertionTest, SavesOldStateThatAnOutputReturns) {
  EXPECT_EQ(Inserted(R"(
    graph g {
      %a = optimizer_state : f32[2,2]
      %b = optimizer_state : f32[2,2]
      %flat = reshape(%a) {shape=[4]} : f32[4]
      return %b as "a" -> %a, %a as "b" -> %b, %flat as "old"
    })"),
            R"(graph g {
  %a = optimizer_state : f32[2,2]
  %b = optimizer_state : f32[2,2]
  %a.copy = copy(%a) {layout=""} : f32[2,2]
  %a.copy.copy = copy(%a.copy) {layout=""} : f32[2,2]
  %b.copy = copy(%b) {layout=""} : f32[2,2]
  %b.copy.copy = copy(%b.copy) {layout=""} : f32[2,2]
  %reshape = reshape(%a.copy) {shape=[4]} : f32[4]
  return %b.copy.copy as "a" -> %a, %a.copy.copy as "b" -> %b, %reshape as "old"
}
)");
  EXPECT_THAT(Steps(),
              ElementsAre("b.copy", "a.copy", "b.copy.copy", "a.copy.copy"));
}

// A collective overwrites its operands.
TEST_F(CopyInsertionTest, CopiesWhatIsReadAfterACollective) {
  EXPECT_EQ(Inserted(R"(
    graph g {
      %x = data : f32[4]
      %y = exp(%x) : f32[4]
      %a = all_reduce(%y) : f32[4]
      %b = add(%a, %y) : f32[4]
      return %b as "b"
    })"),
            R"(graph g {
  %x = data : f32[4]
  %y = exp(%x) : f32[4]
  %y.copy = copy(%y) {layout=""} : f32[4]
  %a = all_reduce(%y.copy) : f32[4]
  %b = add(%a, %y) : f32[4]
  return %b as "b"
}
)");
  EXPECT_THAT(Steps(), ElementsAre("y", "y.copy", "a", "b"));
  EXPECT_EQ(PlaceOf("y").arena, kTemporaryArena);
  EXPECT_EQ(PlaceOf("y.copy").arena, kGradientArena);
  EXPECT_EQ(PlaceOf("a").overwrites->name(), "y.copy");
}

TEST_F(CopyInsertionTest, CopiesViewsForASecondCollectiveBeforeTheFirst) {
  EXPECT_EQ(Inserted(R"(
    graph g {
      %x = data : f32[2,2]
      %y = exp(%x) : f32[2,2]
      %u = reshape(%y) {shape=[4]} : f32[4]
      %a = all_reduce(%u) : f32[4]
      %v = reshape(%y) {shape=[1,4]} : f32[1,4]
      %b = all_reduce(%v) : f32[1,4]
      return %a as "a", %b as "b"
    })"),
            R"(graph g {
  %x = data : f32[2,2]
  %y = exp(%x) : f32[2,2]
  %y.copy = copy(%y) {layout=""} : f32[2,2]
  %u = reshape(%y) {shape=[4]} : f32[4]
  %a = all_reduce(%u) : f32[4]
  %reshape = reshape(%y.copy) {shape=[1,4]} : f32[1,4]
  %b = all_reduce(%reshape) : f32[1,4]
  return %a as "a", %b as "b"
}
)");
  EXPECT_THAT(Steps(), ElementsAre("y", "y.copy", "a", "b"));
  EXPECT_EQ(PlaceOf("y").arena, kGradientArena);
}

TEST_F(CopyInsertionTest, RepeatsViewsInTheirLayout) {
  Inserted(R"(
    graph g {
      %x = data : f32[2,8,1,1]
      %y = exp(%x) : f32[2,8,1,1]
      %a = all_reduce(%y) : f32[2,8,1,1]
      %v = transpose(%y) {permutation=[0,1,2,3]} : f32[2,8,1,1]{aBcd8b}
      %b = all_reduce(%v) : f32[2,8,1,1]{aBcd8b}
      return %a as "a", %b as "b"
    })");
  EXPECT_THAT(Steps(), ElementsAre("y", "y.copy", "a", "b"));
  const ir::Value* operand = constraints_.steps.back()->input(0);
  EXPECT_EQ(operand->type(), constraints_.steps.back()->output()->type());
  EXPECT_EQ(operand->producer()->input(0)->name(), "y.copy");
}

}  // namespace
}  // namespace fusor::codegen
