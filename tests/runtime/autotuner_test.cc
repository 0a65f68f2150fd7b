#include "runtime/autotuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "codegen/compiler.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "tests/testing/small_models.h"

namespace fusor::runtime {
namespace {

using ir::DType;

class TuneTest : public testing::Test {
 protected:
  TuneResult Tune(codegen::ProgramKind kind = codegen::ProgramKind::kTrain) {
    tune_.rounds = 1;
    return runtime::Tune(*test::SmallResidual(), kind, session_.compiler(),
                         session_.device(), compile_, tune_);
  }

  Session session_{LoadBackend("cpu"), {.threads = 1}};
  codegen::CompileOptions compile_;
  TuneOptions tune_;
};

TEST_F(TuneTest, EveryCandidateOfEveryProblemIsMeasured) {
  const TuneResult result = Tune();
  EXPECT_TRUE(result.complete);
  std::set<std::string> ops;
  std::set<std::tuple<std::string, DType, std::string>> seen;
  for (const TunedCandidate& c : result.measured) {
    EXPECT_TRUE(seen.emplace(c.problem, c.dtype, c.name).second) << c.problem;
    EXPECT_EQ(c.dtype, DType::kF32);
    EXPECT_GT(c.ms, 0);
    EXPECT_GE(c.copies_ms, 0);
    EXPECT_GE(c.layers, 1);
    EXPECT_NE(c.implementation, "");
    ops.insert(c.problem.substr(0, c.problem.find(' ')));
  }
  EXPECT_THAT(ops, testing::ElementsAre("conv2d", "conv2d_grad_input",
                                        "conv2d_grad_weight"));
  EXPECT_TRUE(result.choices.precisions.empty());
  for (const auto& [key, name] : result.choices.candidates) {
    EXPECT_TRUE(seen.contains({key.first, key.second, name})) << name;
  }
  EXPECT_EQ(result.choices.origin.target, session_.compiler().target().name);
  EXPECT_EQ(result.choices.origin.threads, 1);
  EXPECT_EQ(result.choices.origin.device, session_.device().description());
}

TEST_F(TuneTest, MixedPrecisionIsMeasuredInBothDtypesAndDecided) {
  if (!session_.compiler().target().bf16_matmul) {
    GTEST_SKIP() << "this CPU multiplies no bf16";
  }
  compile_.passes.precision.dtype = DType::kBF16;
  const TuneResult result = Tune();
  std::map<std::string, std::set<DType>> dtypes;
  for (const TunedCandidate& c : result.measured) {
    dtypes[c.problem].insert(c.dtype);
  }
  EXPECT_FALSE(dtypes.empty());
  for (const auto& [problem, both] : dtypes) {
    EXPECT_EQ(both.size(), 2) << problem;
    EXPECT_NE(result.choices.FindPrecision(problem, DType::kBF16), nullptr)
        << problem;
  }
}

TEST_F(TuneTest, AStepCompilesWithWhatWasChosen) {
  compile_.passes.precision.dtype = DType::kBF16;
  codegen::CompileOptions options = compile_;
  options.passes.choices = Tune().choices;
  Program& program = session_.Compile(test::SmallResidual(),
                                      codegen::ProgramKind::kTrain, options);
  EXPECT_EQ(program.plan().choices, options.passes.choices.Hash());
  session_.state().Initialize(1);
  program.Run();
}

TEST_F(TuneTest, AnEvaluationHasForwardProblemsAlone) {
  for (const TunedCandidate& c : Tune(codegen::ProgramKind::kEval).measured) {
    EXPECT_TRUE(c.problem.starts_with("conv2d x=")) << c.problem;
  }
}

TEST_F(TuneTest, WinogradIsNotMeasuredWhereItIsNotAllowed) {
  compile_.passes.winograd = false;
  for (const TunedCandidate& c : Tune().measured) {
    EXPECT_NE(c.name, "winograd");
  }
}

TEST_F(TuneTest, WhatIsStoppedChoosesNothing) {
  int asked = 0;
  tune_.stop = [&] { return ++asked > 3; };
  const TuneResult result = Tune();
  EXPECT_FALSE(result.complete);
  EXPECT_TRUE(result.choices.empty());
}

}  // namespace
}  // namespace fusor::runtime
