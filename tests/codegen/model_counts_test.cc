// Counts patterns, kernels by kind and casts in compiled models. The counts in
// tests/golden/model_counts.txt are exact. Review a change before you store it.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "codegen/compiler.h"
#include "models/model.h"
#include "tests/fakes/fake_compiler.h"
#include "tools/inspect/report/graph_view.h"

namespace fusor::codegen {
namespace {

constexpr char kModelCounts[] = FUSOR_GOLDEN_DIR "/model_counts.txt";

using Counts = std::map<std::string, int64_t>;

// Counts for a training step, such as "resnet50-v1.5 bf16 casts_narrow".
void Count(const std::string& arch, ir::DType dtype, Counts& counts) {
  const test::FakeCompiler compiler("cpu-avx512");
  CompileOptions options;
  options.passes.precision.dtype = dtype;
  options.plan_only = true;
  const CompiledProgram program = Compile(
      models::BuildModel(arch, models::Phase::kTrain, {.batch = 2}).graph,
      ProgramKind::kTrain, compiler, options);
  const std::string prefix = fmt::format("{} {} ", arch, ir::DTypeName(dtype));
  for (const auto& [name, count] : program.report.counters) {
    // The number of nodes that simplify visits does not affect the result.
    if (name != "simplify_visits") counts[prefix + name] = count;
  }
  for (const inspect::KernelCount& kind :
       inspect::CountKernels(*program.graph)) {
    counts[prefix + "kernels " + kind.what] = kind.kernels;
  }
  counts[prefix + "library calls"] = program.report.library_calls;
}

Counts StoredModelCounts() {
  Counts counts;
  std::ifstream file(kModelCounts);
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(": ");
    counts[line.substr(0, colon)] = std::stoll(line.substr(colon + 2));
  }
  return counts;
}

TEST(ModelCounts, AreThoseStored) {
  Counts counts;
  for (const char* arch : {"resnet50-v1.5", "vgg16"}) {
    for (const ir::DType dtype : {ir::DType::kF32, ir::DType::kBF16}) {
      Count(arch, dtype, counts);
    }
  }
  EXPECT_EQ(counts, StoredModelCounts());
  if (!HasFailure()) return;
  const std::string path = testing::TempDir() + "model_counts.txt";
  std::ofstream file(path);
  for (const auto& [name, count] : counts) {
    file << name << ": " << count << "\n";
  }
  ADD_FAILURE() << "the counts of this build are in " << path << "; copy it to "
                << kModelCounts << " if they are right";
}

// Changing the images is part of the kernel that normalises them.
TEST(ModelCounts, AugmentingImagesAddsNoKernel) {
  for (const char* target : {"cpu-avx512", "nvidia-h200"}) {
    const auto steps = [&](bool augment) {
      const test::FakeCompiler compiler(target);
      CompileOptions options;
      options.plan_only = true;
      // One form of the first convolution on GPUs.
      options.passes.disabled = {"space_to_depth"};
      return Compile(models::BuildModel("resnet50-v1.5", models::Phase::kTrain,
                                        {.batch = 2, .augment = augment})
                         .graph,
                     ProgramKind::kTrain, compiler, options)
          .plan.steps.size();
    };
    EXPECT_EQ(steps(true), steps(false)) << target;
  }
}

}  // namespace
}  // namespace fusor::codegen
