#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/builder.h"
#include "passes/passes.h"
#include "tests/testing/bare_target.h"

namespace fusor::passes {
namespace {

// Decisions about a vector that is read `readers` times.
size_t Decisions(int readers) {
  ir::Graph graph("g");
  ir::Builder b(graph);
  const ir::TensorType type{ir::DType::kF32, {64}, {}};
  ir::Value* shared = graph.AddInput(type, ir::InputRole::kData, "shared");
  for (int i = 0; i < readers; ++i) {
    ir::Value* own =
        graph.AddInput(type, ir::InputRole::kData, fmt::format("own{}", i));
    graph.AddOutput(b.Relu(b.Plus(shared, own)), fmt::format("out{}", i));
  }
  const test::BareTarget target;
  PassContext context(target, {});
  EXPECT_TRUE(Fuse(graph, context));
  return context.decisions().size();
}

// It took minutes where 2,000 nodes read a value: each was compared with each.
TEST(Fuse, ReadersOfAValueAreComparedWithThoseNearThem) {
  const size_t few = Decisions(250);
  EXPECT_GT(few, 500);
  EXPECT_LT(Decisions(1000), 6 * few);
}

}  // namespace
}  // namespace fusor::passes
