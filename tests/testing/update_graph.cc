#include "tests/testing/update_graph.h"

#include <vector>

#include "ir/builder.h"
#include "ir/support/error.h"

namespace fusor::test {
namespace {

struct UpdateShape {
  int64_t rows;
  int64_t columns;
};

}  // namespace

std::unique_ptr<ir::Graph> UpdateGraph(Gradients gradients) {
  auto graph = std::make_unique<ir::Graph>("updates");
  ir::Builder b(*graph);
  ir::Value* lr = graph->AddInput({ir::DType::kF32, {}, {}},
                                  ir::InputRole::kHyperParameter, "lr");
  ir::Value* shared = nullptr;
  int n = 0;
  const std::vector<UpdateShape> shapes =
      gradients == Gradients::kShared
          ? std::vector<UpdateShape>{{3, 7}, {7, 3}, {21, 1}}
          : std::vector<UpdateShape>{{3, 7}, {1, 5}, {16, 4}, {2, 1}};
  for (const UpdateShape& s : shapes) {
    const auto input = [&](ir::InputRole role, const char* name, int64_t rows,
                           int64_t columns) {
      return graph->AddInput({ir::DType::kF32, {rows, columns}, {}}, role,
                             fmt::format("{}{}", name, n));
    };
    ir::Value* m =
        input(ir::InputRole::kOptimizerState, "m", s.rows, s.columns);
    ir::Value* w = input(ir::InputRole::kWeight, "w", s.rows, s.columns);
    ir::Value* g =
        shared == nullptr ? nullptr : b.Reshape(shared, {s.rows, s.columns});
    if (g == nullptr && gradients == Gradients::kData) {
      g = input(ir::InputRole::kData, "g", s.rows, s.columns);
    } else if (g == nullptr) {
      g = b.Matmul(input(ir::InputRole::kData, "x", s.rows, 6),
                   input(ir::InputRole::kData, "y", 6, s.columns));
      graph->Rename(g, fmt::format("g{}", n));
    }
    if (gradients == Gradients::kShared && shared == nullptr) shared = g;
    ir::Value* velocity = b.Plus(b.Times(m, 0.9), g);
    ir::Value* rate = b.BroadcastTo(lr, w->type().shape);
    graph->AddOutput(b.Minus(w, b.Times(rate, velocity)), w->name(),
                     w->index());
    graph->AddOutput(velocity, m->name(), m->index());
    ++n;
  }
  return graph;
}

}  // namespace fusor::test
