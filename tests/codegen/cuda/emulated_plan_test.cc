// Runs the plans of `fusor compile --target nvidia-h200` on the emulated GPU.

#include <gtest/gtest.h>

#include "codegen/compiler.h"
#include "models/model.h"
#include "runtime/backend/backend_loader.h"
#include "tests/fakes/emulated_device.h"
#include "tests/testing/cuda_planner.h"

namespace fusor::test {
namespace {

using passes::NormLowering;

// Returns a plan without machine code, since the emulated GPU compiles its own.
codegen::Plan PlanOf(const codegen::TargetCompiler& compiler, ir::DType dtype,
                     NormLowering lowering) {
  codegen::CompileOptions options;
  options.plan_only = true;
  options.passes.precision.dtype = dtype;
  options.passes.norm_lowering = lowering;
  const models::ModelOptions model{
      .batch = 2, .image_size = 32, .num_classes = 10};
  return Compile(
             models::BuildModel("resnet20-cifar", models::Phase::kTrain, model)
                 .graph,
             codegen::ProgramKind::kTrain, compiler, options)
      .plan;
}

TEST(EmulatedPlan, IsThatOfTheCudaBackend) {
  EmulatedBackend emulated(
      {.compiler = [] { return CudaPlanner("nvidia-h200"); }});
  const auto cuda =
      runtime::LoadBackend("cuda").CreateCompiler("nvidia-h200", {});
  for (const auto& [dtype, lowering] :
       {std::pair{ir::DType::kF32, NormLowering::kKernels},
        {ir::DType::kF16, NormLowering::kKernels},
        {ir::DType::kF16, NormLowering::kPrologues}}) {
    EXPECT_EQ(Print(PlanOf(*emulated.CreateCompiler("", {}), dtype, lowering)),
              Print(PlanOf(*cuda, dtype, lowering)));
  }
}

}  // namespace
}  // namespace fusor::test
