// Counts the launches that update all parameters of a model.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "codegen/compiler.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/small_models.h"

namespace fusor::codegen {
namespace {

// Launches that write parameters or their state, and launches that only write
// scalar state.
struct Launches {
  int of_tensors = 0;
  int of_scalars = 0;
  int64_t copied_bytes = 0;  // by other steps, to such state
};

Launches CountLaunches(const Plan& plan) {
  std::set<int> tensors;
  std::set<int> scalars;
  for (const PlanOutput& output : plan.outputs) {
    if (output.alias < 0) continue;
    const ir::InputRole role = plan.inputs[output.alias].role;
    if (!IsParameter(role) && role != ir::InputRole::kOptimizerState) continue;
    const bool scalar = plan.buffers[output.buffer].type.rank() == 0;
    (scalar ? scalars : tensors).insert(output.buffer);
  }
  Launches launches;
  for (const Step& step : plan.steps) {
    bool tensor = false;
    bool scalar = false;
    for (size_t a = 0; a < step.args.size(); ++a) {
      if (UseOfArg(plan, step, a) != ArgUse::kWritten) continue;
      std::vector<int> written = plan.buffers[step.args[a]].members;
      if (written.empty()) written = {step.args[a]};
      for (int buffer : written) {
        tensor |= tensors.contains(buffer);
        scalar |= scalars.contains(buffer);
      }
    }
    if (step.kind != StepKind::kLaunch) {
      launches.copied_bytes += tensor ? step.bytes : 0;
    } else if (tensor) {
      ++launches.of_tensors;
    } else {
      launches.of_scalars += scalar ? 1 : 0;
    }
  }
  return launches;
}

// One launch updates weights with decay, another everything else. If both decay
// alike, there is one.
TEST(UpdateLaunches, AreTwoForAllTensors) {
  for (const char* target : {"cpu-avx2", "cpu-avx512", "nvidia-h200"}) {
    const test::FakeCompiler compiler(target);
    for (const std::string& name : passes::OptimizerNames()) {
      for (const bool alike : {false, true}) {
        SCOPED_TRACE(name + " on " + target + (alike ? ", alike" : ""));
        CompileOptions options;
        options.verification = passes::Verification::kAll;
        passes::OptimizerOptions& optimizer = options.passes.optimizer;
        optimizer.kind = passes::ParseOptimizer(name);
        if (alike) optimizer.norm_weight_decay = optimizer.weight_decay;
        const Plan plan = Compile(test::SmallResidual(), ProgramKind::kTrain,
                                  compiler, options)
                              .plan;
        const Launches launches = CountLaunches(plan);
        const bool by_role = optimizer.kind == passes::OptimizerKind::kLars;
        EXPECT_EQ(launches.of_tensors, alike && !by_role ? 1 : 2);
        EXPECT_EQ(launches.of_scalars,
                  passes::HasOption(optimizer.kind, "beta1") ? 1 : 0);
        EXPECT_EQ(launches.copied_bytes, 0);
      }
    }
  }
}

// A dynamic loss scale skips updates and has scalar state.
TEST(UpdateLaunches, AreTwoForTensorsThatMayBeKept) {
  for (const char* target : {"cpu-avx2", "nvidia-h200"}) {
    const test::FakeCompiler compiler(target);
    for (const std::string& name : passes::OptimizerNames()) {
      SCOPED_TRACE(name + " on " + target);
      CompileOptions options;
      options.verification = passes::Verification::kAll;
      options.passes.optimizer.kind = passes::ParseOptimizer(name);
      options.passes.loss_scale = {.initial = 1024, .dynamic = true};
      const Launches launches = CountLaunches(
          Compile(test::SmallResidual(), ProgramKind::kTrain, compiler, options)
              .plan);
      EXPECT_EQ(launches.of_tensors, 2);
      EXPECT_LE(launches.of_scalars, 2);
      EXPECT_EQ(launches.copied_bytes, 0);
    }
  }
}

}  // namespace
}  // namespace fusor::codegen
