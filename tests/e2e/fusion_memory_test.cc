// What fusion costs in memory. Two of its choices hold bytes that the unfused
// step does not: a forward kernel writes the mask of its ReLU, a byte an
// element, where the unfused step compares again, and gradients wait for the
// one kernel that updates all parameters. Nothing else may add to the peak.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <vector>

#include "codegen/buffer_life.h"
#include "codegen/compiler.h"
#include "models/model.h"
#include "runtime/backend_loader.h"

namespace fusor {
namespace {

class FusionMemory : public ::testing::TestWithParam<std::string> {};

codegen::Plan PlanOf(const std::string& arch, bool fusion) {
  const models::ModelOptions model{
      .batch = 16,
      .image_size = arch == "resnet20-cifar" ? 32 : 224,
      .num_classes = 10};
  codegen::CompileOptions options;
  options.plan_only = true;
  options.passes.fusion = fusion;
  const auto compiler = runtime::LoadBackend("cpu").CreateCompiler("", {});
  codegen::CompiledProgram program =
      Compile(models::BuildModel(arch, models::Phase::kTrain, model).graph,
              codegen::ProgramKind::kTrain, *compiler, options);
  EXPECT_TRUE(program.plan.kernels.at(0).binary.empty());
  return std::move(program.plan);
}

// Masks and waiting gradients, in bytes, at the step where the plan's
// temporary buffers take most.
int64_t HeldAtPeak(const codegen::Plan& plan) {
  const std::vector<codegen::BufferLife> lives = BufferLives(plan);
  std::set<int> joined;
  for (const codegen::Buffer& buffer : plan.buffers) {
    joined.insert(buffer.members.begin(), buffer.members.end());
  }
  std::vector<int64_t> live(plan.steps.size(), 0);
  std::vector<int64_t> held(plan.steps.size(), 0);
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    const codegen::Buffer& buffer = plan.buffers[b];
    if (plan.arenas[buffer.arena].kind != codegen::ArenaKind::kTemporary ||
        !buffer.members.empty() || lives[b].first < 0) {
      continue;
    }
    const bool is_held = buffer.type.dtype == ir::DType::kBool ||
                         joined.contains(static_cast<int>(b));
    for (int s = lives[b].first; s <= lives[b].last; ++s) {
      live[s] += buffer.bytes;
      if (is_held) held[s] += buffer.bytes;
    }
  }
  return held[std::max_element(live.begin(), live.end()) - live.begin()];
}

TEST_P(FusionMemory, AddsNothingToThePeakButMasksAndWaitingGradients) {
  const codegen::Plan fused = PlanOf(GetParam(), true);
  const codegen::Plan unfused = PlanOf(GetParam(), false);
  EXPECT_LE(fused.peak_bytes, unfused.peak_bytes + HeldAtPeak(fused));
  EXPECT_LE(fused.peak_bytes, unfused.peak_bytes + unfused.peak_bytes / 10);
}

INSTANTIATE_TEST_SUITE_P(Models, FusionMemory,
                         ::testing::Values("resnet18", "resnet50", "vgg16",
                                           "resnet20-cifar"),
                         [](const auto& test) {
                           std::string name;
                           for (char c : test.param) {
                             if (std::isalnum(c)) name += c;
                           }
                           return name;
                         });

}  // namespace
}  // namespace fusor
