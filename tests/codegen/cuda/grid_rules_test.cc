#include "tests/codegen/cuda/grid_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codegen/kernel/kernel_builder.h"
#include "runtime/backend/backend_loader.h"

namespace fusor::test {
namespace {

using codegen::BufferUse;
using codegen::KernelBuilder;
using ir::DType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kLanes = 1024;  // of a block
constexpr int kBlockThreads = 128;

// Returns the rules that a kernel of `blocks` blocks breaks, each with its
// reason. Each block copies `rows` rows of 1024 16-bit elements.
std::vector<std::string> Broken(int64_t blocks, int64_t rows) {
  const auto compiler =
      runtime::LoadBackend("cuda").CreateCompiler("nvidia-h200", {});
  KernelBuilder builder("kernel", compiler->target());
  builder.SetLanes(kLanes, kLanes / kBlockThreads);
  const int64_t elements = blocks * rows * kLanes;
  const int x = builder.AddBuffer("x", DType::kF16, elements, BufferUse::kRead);
  const int y =
      builder.AddBuffer("y", DType::kF16, elements, BufferUse::kWritten);
  const int block = builder.AddAxis("block", blocks);
  const int lane = builder.AddAxis("lane", kLanes, codegen::AxisKind::kVector);
  const int row = builder.AddAxis("row", rows);
  {
    const auto phase = builder.BeginPhase({block, lane});
    const auto loop = builder.BeginLoop(row);
    const codegen::Index here{
        0, {{block, rows * kLanes}, {row, kLanes}, {lane, 1}}};
    builder.Store(y, here, builder.Load(x, here));
  }
  codegen::Plan plan;
  plan.kernels.emplace_back().kernel = std::move(builder).Build();
  plan.steps.emplace_back().kind = codegen::StepKind::kLaunch;
  const inspect::GpuModel model = inspect::ModelGpuStep(plan, *compiler);
  const codegen::Kernel& kernel = plan.kernels[0].kernel;
  EXPECT_EQ(model.launches.size(), 1u);
  EXPECT_EQ(model.launches[0].blocks, blocks);
  EXPECT_EQ(model.launches[0].threads, kBlockThreads);
  std::vector<std::string> broken;
  for (const BrokenGridRule& rule :
       BrokenGridRules(model.launches[0], LoadedBytes(kernel, kernel.phases[0]),
                       compiler->target().threads)) {
    broken.push_back(std::string(rule.rule) + ": " +
                     (rule.reason == nullptr ? "no reason" : rule.reason));
  }
  return broken;
}

// 132 multiprocessors with 16 blocks each.
constexpr int64_t kWave = 132 * 16;

TEST(GridRulesTest, AcceptsFullWaves) {
  EXPECT_THAT(Broken(kWave, 32), IsEmpty());
  EXPECT_THAT(Broken(2 * kWave, 32), IsEmpty());
  EXPECT_THAT(Broken(kWave * 9 / 5, 32), IsEmpty());
}

TEST(GridRulesTest, FindsAWaveOfFewBlocks) {
  EXPECT_THAT(Broken(kWave * 11 / 10, 32), ElementsAre("waves: no reason"));
  EXPECT_THAT(Broken(kWave * 21 / 10, 32), ElementsAre("waves: no reason"));
}

TEST(GridRulesTest, FindsFewBlocksThatLoadMuch) {
  EXPECT_THAT(Broken(8, 190), ElementsAre("few blocks: no reason"));  // 3 MB
}

TEST(GridRulesTest, ExcusesBlocksThatKeepMemoryBusy) {
  const auto busy = HasSubstr("keep memory busy");
  EXPECT_THAT(Broken(kWave * 31 / 20, 32), ElementsAre(busy));
  EXPECT_THAT(Broken(131, 8), ElementsAre(busy));
}

TEST(GridRulesTest, ExcusesLossesOfAMicrosecond) {
  EXPECT_THAT(Broken(kWave * 11 / 10, 1),
              ElementsAre("waves: another grid would save at most 1 us"));
  EXPECT_THAT(Broken(16, 16),  // 0.5 MB
              ElementsAre("few blocks: another grid would save at most 1 us"));
  EXPECT_THAT(Broken(8, 8), IsEmpty());  // 131 KB
}

}  // namespace
}  // namespace fusor::test
