#include "tools/inspect/report/gpu_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "codegen/compiler.h"
#include "codegen/cuda/cuda_printer.h"
#include "models/model.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/graph_text.h"
#include "tools/inspect/report/traffic.h"

namespace fusor::inspect {
namespace {

using ::testing::HasSubstr;

// Reports that the threads of machine code use `registers` registers each.
class GpuCompiler : public test::FakeCompiler {
 public:
  explicit GpuCompiler(int registers)
      : FakeCompiler("nvidia-h200"), registers_(registers) {}

  std::vector<codegen::EntryResources> Resources(
      const std::string&) const override {
    std::vector<codegen::EntryResources> entries;
    for (int p = 0; p < 16; ++p) {
      entries.push_back({"fusor_p" + std::to_string(p), registers_, 8});
    }
    return entries;
  }

 private:
  int registers_;
};

class GpuModelTest : public ::testing::Test {
 protected:
  GpuModel Model(int registers) const {
    return ModelGpuStep(plan_, GpuCompiler(registers));
  }

  const codegen::Plan plan_ =
      codegen::Compile(models::BuildModel(
                           "resnet20-cifar", models::Phase::kTrain,
                           {.batch = 256, .image_size = 32, .num_classes = 10})
                           .graph,
                       codegen::ProgramKind::kTrain, GpuCompiler(32), {})
          .plan;
};

TEST_F(GpuModelTest, EveryPhaseOfEveryLaunchIsThereWithItsBytes) {
  const GpuModel model = Model(32);
  size_t at = 0;
  double us = 0;
  for (size_t s = 0; s < plan_.steps.size(); ++s) {
    const codegen::Step& step = plan_.steps[s];
    if (step.kind != codegen::StepKind::kLaunch) continue;
    const codegen::Kernel& kernel = plan_.kernels[step.index].kernel;
    int64_t bytes = 0;
    for (size_t p = 0; p < kernel.phases.size(); ++p, ++at) {
      ASSERT_LT(at, model.launches.size());
      const GpuLaunch& launch = model.launches[at];
      EXPECT_EQ(launch.step, static_cast<int>(s));
      EXPECT_EQ(launch.phase, static_cast<int>(p));
      EXPECT_EQ(launch.blocks, codegen::CudaLaunches(kernel)[p].blocks);
      EXPECT_EQ(launch.registers, 32);
      EXPECT_EQ(launch.stack_bytes, 8);
      bytes += launch.memory_bytes + launch.cached_bytes;
      us += launch.us;
    }
    EXPECT_EQ(bytes, TrafficBytes(kernel)) << kernel.name;
  }
  EXPECT_EQ(at, model.launches.size());
  EXPECT_NEAR(model.kernels_ms, us / 1e3, 1e-9);
}

TEST_F(GpuModelTest, NoLaunchIsFasterThanMemoryAllows) {
  const ir::Target target = ir::FindTarget("nvidia-h200");
  for (const GpuLaunch& launch : Model(32).launches) {
    EXPECT_GE(launch.us * 1e3 * target.memory_gb_per_s, launch.memory_bytes);
  }
}

TEST_F(GpuModelTest, RegistersLimitResidentBlocks) {
  const GpuModel few = Model(32);
  const GpuModel many = Model(250);
  EXPECT_GT(many.kernels_ms, few.kernels_ms);
  for (size_t i = 0; i < few.launches.size(); ++i) {
    const GpuLaunch& launch = many.launches[i];
    EXPECT_TRUE(launch.blocks_at_once == 1 ||
                launch.blocks_at_once * launch.threads * 256 <= 65536);
    EXPECT_GE(launch.waves, few.launches[i].waves);
    EXPECT_GE(launch.us, 0.999 * few.launches[i].us);
  }
}

// A block has 69 KB of shared memory, of which a multiprocessor has 228.
TEST(GpuModelProducts, TakeTimeBeyondTheirBytes) {
  const GpuCompiler compiler(32);
  const auto program =
      codegen::Compile(test::ParseOrDie(R"(graph g {
        %a = data : f16[4096,4096]
        %b = data : f16[4096,4096]
        %y = matmul(%a, %b) {algorithm="generated"} : f16[4096,4096]
        return %y as "y"
      })"),
                       codegen::ProgramKind::kEval, compiler, {});
  const GpuModel model = ModelGpuStep(program.plan, compiler);
  ASSERT_EQ(model.launches.size(), 1);
  EXPECT_EQ(model.launches[0].product_flops, int64_t{2} << 36);
  EXPECT_EQ(model.launches[0].blocks_at_once, 3);
  const double ms = static_cast<double>(int64_t{2} << 36) / 1e6 /
                    (0.5 * compiler.target().peak_gflops_16);
  EXPECT_NEAR(model.step_ms(1), ms, 0.01 * ms);
  EXPECT_GT(model.products_ms[0], model.products_ms[1]);
  EXPECT_THAT(GpuModelText(model, 1), HasSubstr("generated kernels beyond"));
}

TEST_F(GpuModelTest, ReportsSmallGridsAndConvolutions) {
  const GpuModel model = Model(32);
  int64_t small = 0;
  for (const GpuLaunch& launch : model.launches) small += launch.blocks < 132;
  EXPECT_EQ(model.small_grids, small);
  EXPECT_LT(model.small_grids_ms, model.kernels_ms);
  EXPECT_GT(model.convolutions_ms[0], model.convolutions_ms[2]);
  EXPECT_THAT(GpuModelText(model, 256), HasSubstr("images/s"));
  const nlohmann::json json = GpuModelJson(model, plan_, 256);
  EXPECT_EQ(json.at("launches").size(), model.launches.size());
  const auto& share = json.at("convolutions").at(1);
  EXPECT_DOUBLE_EQ(share.at("step_ms"), model.step_ms(1));
  EXPECT_EQ(share.at("products_ms"), 0);
  EXPECT_DOUBLE_EQ(share.at("images_per_s"), 256e3 / model.step_ms(1));
}

}  // namespace
}  // namespace fusor::inspect
