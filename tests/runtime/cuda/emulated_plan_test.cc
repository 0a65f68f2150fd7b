// The emulated GPU runs the very plans that `fusor compile --target
// nvidia-h200` makes.

#include <gtest/gtest.h>

#include "codegen/compiler.h"
#include "models/model.h"
#include "runtime/backend_loader.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/emulated_device.h"

namespace fusor::test {
namespace {

codegen::Plan PlanOf(const codegen::TargetCompiler& compiler, ir::DType dtype) {
  codegen::CompileOptions options;
  options.passes.precision.dtype = dtype;
  const models::ModelOptions model{
      .batch = 2, .image_size = 32, .num_classes = 10};
  codegen::Plan plan =
      Compile(models::BuildModel("resnet20-cifar", models::Phase::kTrain, model)
                  .graph,
              codegen::ProgramKind::kTrain, compiler, options)
          .plan;
  for (codegen::CompiledKernel& kernel : plan.kernels) kernel.binary.clear();
  return plan;
}

TEST(EmulatedPlan, IsThatOfTheCudaBackend) {
  EmulatedBackend emulated(
      {.compiler = [] { return CudaPlanner("nvidia-h200"); }});
  const auto cuda =
      runtime::LoadBackend("cuda").CreateCompiler("nvidia-h200", {});
  for (const ir::DType dtype : {ir::DType::kF32, ir::DType::kF16}) {
    EXPECT_EQ(Print(PlanOf(*emulated.CreateCompiler("", {}), dtype)),
              Print(PlanOf(*cuda, dtype)));
  }
}

}  // namespace
}  // namespace fusor::test
