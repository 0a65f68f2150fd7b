// Fusion must not increase the peak memory. Two of its choices hold additional
// bytes: a forward kernel writes the bitmask of its ReLU, which the unfused
// step recomputes, and gradients wait for the kernel that updates several
// parameters. Other choices hold fewer bytes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "codegen/plan/plan.h"
#include "models/model.h"
#include "runtime/backend/backend_loader.h"
#include "tests/fakes/fake_compiler.h"

namespace fusor {
namespace {

class FusionMemory : public ::testing::TestWithParam<std::string> {};

codegen::Plan PlanOf(const codegen::TargetCompiler& compiler,
                     const std::string& arch, bool fusion, int64_t batch,
                     int64_t size) {
  const models::ModelOptions model{
      .batch = batch,
      .image_size = arch == "resnet20-cifar" ? 32 : size,
      .num_classes = 10};
  codegen::CompileOptions options;
  options.plan_only = true;
  options.passes.fusion = fusion;
  codegen::CompiledProgram program =
      Compile(models::BuildModel(arch, models::Phase::kTrain, model).graph,
              codegen::ProgramKind::kTrain, compiler, options);
  EXPECT_TRUE(program.plan.kernels.at(0).binary.empty());
  return std::move(program.plan);
}

codegen::Plan PlanOf(const std::string& arch, bool fusion, int64_t batch = 16,
                     int64_t size = 224) {
  const auto compiler = runtime::LoadBackend("cpu").CreateCompiler("", {});
  return PlanOf(*compiler, arch, fusion, batch, size);
}

TEST_P(FusionMemory, PeakIsNotAboveTheUnfusedOne) {
  const codegen::Plan fused = PlanOf(GetParam(), true);
  const codegen::Plan unfused = PlanOf(GetParam(), false);
  EXPECT_LE(fused.peak_bytes, unfused.peak_bytes);
}

// With small images, gradients and workspaces exceed activations. Uses
// workspaces of a fake library, since those of oneDNN depend on the CPU.
TEST_P(FusionMemory, PeakIsNotAboveTheUnfusedOneWithSmallImages) {
  const test::FakeCompiler compiler("cpu-avx512");
  const codegen::Plan fused = PlanOf(compiler, GetParam(), true, 4, 64);
  const codegen::Plan unfused = PlanOf(compiler, GetParam(), false, 4, 64);
  EXPECT_LE(fused.peak_bytes, unfused.peak_bytes);
}

// oneDNN's own matmuls need 36 MB for four images of 2 x 2 pixels.
TEST(FusionMemorySmall, MatrixProductsOfSmallFeatureMapsNeedLittle) {
  for (const codegen::LibraryCall& call :
       PlanOf("resnet18", true, 4, 64).calls) {
    if (call.implementation.find("gemm") == std::string::npos) continue;
    EXPECT_LE(call.workspace_bytes, 1 << 20)
        << call.op_name() << " " << call.implementation;
  }
}

// The network stores its ReLUs in addition to the masks, and has no pool whose
// operand fusion could free.
TEST(FusionMemorySmall, MasksAddNothingToANetworkWithoutPools) {
  for (const int64_t batch : {8, 16}) {
    const codegen::Plan fused = PlanOf("resnet20-cifar", true, batch);
    const codegen::Plan unfused = PlanOf("resnet20-cifar", false, batch);
    // On AVX2, layouts need one more copy, and Winograd's workspace meets the
    // peak of a network that is this small.
    EXPECT_LE(fused.peak_bytes, 1.06 * unfused.peak_bytes) << "batch " << batch;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, FusionMemory,
                         ::testing::Values("resnet18", "resnet50", "vgg16"),
                         [](const auto& test) {
                           std::string name;
                           for (char c : test.param) {
                             if (std::isalnum(c)) name += c;
                           }
                           return name;
                         });

}  // namespace
}  // namespace fusor
