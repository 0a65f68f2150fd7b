// The C++ samples of README.md. tests/tools/architecture_test.py compares them.

#include <gtest/gtest.h>

#include "runtime/fusor.h"

namespace fusor::examples {
namespace {

TEST(TenLines, LowerTheLoss) {
  auto graph = std::make_unique<ir::Graph>("mine");
  ir::Builder b(*graph);
  ir::Value* x = graph->AddInput({ir::DType::kF32, {32, 16}, {}},
                                 ir::InputRole::kData, "x");
  ir::Value* w =
      graph->AddInput({ir::DType::kF32, {4, 16}, {}}, ir::InputRole::kWeight,
                      "w", {{"init", std::string("normal")}, {"std", 0.1}});
  ir::Value* y = b.Linear(x, w, nullptr);
  graph->AddOutput(b.ReduceMean(b.Times(y, y), {0, 1}), "loss");
  runtime::Session session(runtime::LoadBackend("cpu"), {});
  runtime::Program& program =
      session.Compile(std::move(graph), codegen::ProgramKind::kTrain, {});
  session.state().Initialize(/*seed=*/0);

  const std::vector<float> data(32 * 16, 1.0f);
  const float lr = 0.1f;
  program.SetInput(program.FindInput("x"), data.data(),
                   data.size() * sizeof(float));
  program.SetInput(program.FindInput("lr"), &lr, sizeof lr);
  for (int i = 0; i < 10; ++i) program.Run();
  double loss = program.ReadScalar(program.FindOutput("loss"));

  program.Run();
  EXPECT_LT(program.ReadScalar(program.FindOutput("loss")), loss);
}

}  // namespace
}  // namespace fusor::examples
