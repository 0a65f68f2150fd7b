// A separate project that trains a linear layer with an installed fusor.

#include <cstdio>
#include <memory>
#include <vector>

#include "runtime/fusor.h"

namespace ir = fusor::ir;
namespace runtime = fusor::runtime;

int main() try {
  auto graph = std::make_unique<ir::Graph>("consumer");
  ir::Builder b(*graph);
  ir::Value* x = graph->AddInput({ir::DType::kF32, {32, 16}, {}},
                                 ir::InputRole::kData, "x");
  ir::Value* w =
      graph->AddInput({ir::DType::kF32, {4, 16}, {}}, ir::InputRole::kWeight,
                      "w", {{"init", std::string("normal")}, {"std", 0.1}});
  ir::Value* y = b.Linear(x, w, nullptr);
  graph->AddOutput(b.ReduceMean(b.Times(y, y), {0, 1}), "loss");

  runtime::Session session(runtime::LoadBackend("cpu"), {});
  runtime::Program& program = session.Compile(
      std::move(graph), fusor::codegen::ProgramKind::kTrain, {});
  session.state().Initialize(/*seed=*/0);

  const std::vector<float> data(32 * 16, 1.0f);
  const float lr = 0.01f;
  program.SetInput(program.FindInput("x"), data.data(),
                   data.size() * sizeof(float));
  program.SetInput(program.FindInput("lr"), &lr, sizeof lr);
  for (int step = 0; step < 3; ++step) {
    program.Run();
    std::printf("step %d loss %g\n", step,
                program.ReadScalar(program.FindOutput("loss")));
  }
  return 0;
} catch (const fusor::Error& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return static_cast<int>(e.code());
}
