#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "codegen/plan/plan_builder.h"
#include "models/model.h"
#include "tests/fakes/fake_compiler.h"
#include "tools/inspect/dump/dumper.h"

namespace fusor::inspect {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ProgramDumpTest : public ::testing::Test {
 protected:
  ProgramDumpTest() {
    models::ModelOptions options;
    options.batch = 2;
    options.image_size = 32;
    options.num_classes = 10;
    program_ = codegen::Compile(
        models::BuildModel("resnet20-cifar", models::Phase::kTrain, options)
            .graph,
        codegen::ProgramKind::kTrain, compiler_, {});
  }

  const passes::Decision* FirstDecision(const std::string& pass,
                                        bool accepted) const {
    for (const passes::Decision& decision : program_.report.decisions) {
      if (decision.pass == pass && decision.accepted == accepted) {
        return &decision;
      }
    }
    return nullptr;
  }

  // A compiler with one more artifact per kernel.
  class Annotating : public test::FakeCompiler {
   public:
    std::vector<codegen::KernelArtifact> KernelArtifacts(
        const codegen::Kernel& kernel) const override {
      return {{".s", "code of " + kernel.name}};
    }
  };

  Annotating compiler_;
  codegen::CompiledProgram program_;
};

TEST_F(ProgramDumpTest, DecisionsHoldTheSavingOfAFusion) {
  for (const char* pass : {"fuse", "fuse_norm_activation", "fuse_updates"}) {
    SCOPED_TRACE(pass);
    const passes::Decision* decision = FirstDecision(pass, true);
    ASSERT_NE(decision, nullptr);
    EXPECT_GT(decision->saved_ns, 0);
    EXPECT_GT(decision->modelled_ns, 0);
    EXPECT_FALSE(decision->location.path.empty());
    EXPECT_EQ(decision->location.source.file(), "models/resnet.cc");
    EXPECT_THAT(
        DecisionsCsv({*decision}),
        StartsWith("pass,subject,location,source,accepted,fused_ns,"
                   "unfused_ns,reason\n" +
                   decision->pass + "," + decision->subject + "," +
                   decision->location.path + "," +
                   ToString(decision->location.source) + ",yes," +
                   std::to_string(decision->modelled_ns) + "," +
                   std::to_string(decision->modelled_ns + decision->saved_ns)));
  }
  const passes::Decision* rejected = FirstDecision("fuse", false);
  ASSERT_NE(rejected, nullptr);
  EXPECT_THAT(DecisionsCsv({*rejected}),
              HasSubstr("," + rejected->reason + "\n"));
}

TEST_F(ProgramDumpTest, QuotesFieldsAndLeavesUnknownTimesEmpty) {
  EXPECT_EQ(DecisionsCsv({{.pass = "p",
                           .subject = "a,b",
                           .accepted = false,
                           .reason = "says \"no\""}}),
            "pass,subject,location,source,accepted,fused_ns,unfused_ns,reason\n"
            "p,\"a,b\",,,no,,,\"says \"\"no\"\"\"\n");
}

TEST_F(ProgramDumpTest, PrecisionIsATableByLocation) {
  EXPECT_EQ(PrecisionCsv({}), "");
  EXPECT_EQ(PrecisionCsv({{.pass = "mixed_precision",
                           .reason = "cast to bf16",
                           .location = "layer1.0.conv1"},
                          {.pass = "mixed_precision",
                           .reason = "computed in bf16",
                           .location = "fc"},
                          {.pass = "fuse", .location = "fc"}}),
            "place,cast to bf16,computed in bf16\n"
            "layer1.0,1,0\nfc,0,1\ntotal,1,1\n");
}

TEST_F(ProgramDumpTest, LaunchesHaveOneRowPerPhase) {
  size_t phases = 0;
  for (const codegen::Step& step : program_.plan.steps) {
    if (step.kind != codegen::StepKind::kLaunch) continue;
    phases += program_.plan.kernels[step.index].kernel.phases.size();
  }
  const std::string csv = LaunchesCsv(program_.plan);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), phases + 1);
}

TEST_F(ProgramDumpTest, KernelsAreWrittenInEveryFormOfTheTarget) {
  std::map<std::string, std::string> files;
  DumpKernels(program_.plan, compiler_,
              [&](const std::string& path, std::string_view bytes) {
                files[path] = bytes;
              });
  const std::vector<codegen::CompiledKernel>& kernels = program_.plan.kernels;
  EXPECT_EQ(files.size(), 2 * kernels.size());
  const std::string base = "0003." + kernels[3].kernel.name;
  EXPECT_EQ(files.at(base + ".txt"), codegen::Print(kernels[3].kernel));
  EXPECT_EQ(files.at(base + ".s"), "code of " + kernels[3].kernel.name);
}

}  // namespace
}  // namespace fusor::inspect
