#include "ir/target/autotune_results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codegen/compiler.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/target/conv_problem.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/damage.h"
#include "tests/testing/small_models.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::codegen {
namespace {

using ir::AutotuneResults;
using ir::DType;
using ir::ParseAutotuneResults;
using ir::PrintAutotuneResults;
using ir::ReadAutotuneResults;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kProblem[] =
    "conv2d x=2x16x8x8 w=16x16x3x3 stride=1,1 pad=1,1 dilation=1,1 groups=1";

constexpr char kText[] = R"(fusor choices 2
target cpu-avx2
device Some CPU, 2 threads
threads 2
library none
candidate conv2d x=2x16x8x8 w=16x16x3x3 stride=1,1 pad=1,1 dilation=1,1 groups=1 f32 = winograd  # 0.5 ms
candidate conv2d x=2x16x8x8 w=16x16x3x3 stride=1,1 pad=1,1 dilation=1,1 groups=1 bf16 = direct
precision conv2d x=2x16x8x8 w=16x16x3x3 stride=1,1 pad=1,1 dilation=1,1 groups=1 bf16 = f32
end 3
)";

// Returns kText with `part` replaced by `by`.
std::string With(const std::string& part, const std::string& by) {
  std::string text = kText;
  const size_t at = text.find(part);
  EXPECT_NE(at, std::string::npos) << part;
  return text.replace(at, part.size(), by);
}

std::string ErrorOf(const std::string& text) {
  try {
    ParseAutotuneResults(text, "c.txt");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    return error.what();
  }
  return "";
}

TEST(ChoiceFile, ReadsWhatItWrites) {
  const AutotuneResults choices = ParseAutotuneResults(kText, "c.txt");
  EXPECT_EQ(choices.origin.file, "c.txt");
  EXPECT_EQ(choices.origin.device, "Some CPU, 2 threads");
  EXPECT_EQ(choices.origin.threads, 2);
  ASSERT_NE(choices.FindCandidate(kProblem, DType::kF32), nullptr);
  EXPECT_EQ(*choices.FindCandidate(kProblem, DType::kF32), "winograd");
  EXPECT_EQ(*choices.FindCandidate(kProblem, DType::kBF16), "direct");
  EXPECT_EQ(*choices.FindPrecision(kProblem, DType::kBF16), DType::kF32);
  EXPECT_EQ(choices.FindPrecision(kProblem, DType::kF16), nullptr);
  EXPECT_EQ(
      PrintAutotuneResults(choices, {{{kProblem, DType::kF32}, "0.5 ms"}}),
      kText);

  const test::TemporaryFolder folder;
  const std::string path = folder / "c.txt";
  WriteFileAtomically(path, PrintAutotuneResults(choices), ErrorCode::kUsage);
  const AutotuneResults again = ReadAutotuneResults(path);
  EXPECT_EQ(PrintAutotuneResults(again), PrintAutotuneResults(choices));
  EXPECT_EQ(again.Hash(), choices.Hash());
  EXPECT_THROW(ReadAutotuneResults(folder / "other.txt"), Error);
}

TEST(ChoiceFile, SettingsAreFlagsAndNotPartOfTheHash) {
  const std::string text =
      With("end 3", "setting --amp\nsetting --batch-size 64\nend 5");
  const AutotuneResults choices = ParseAutotuneResults(text, "c.txt");
  EXPECT_EQ(choices.settings, (std::map<std::string, std::string>{
                                  {"--amp", ""}, {"--batch-size", "64"}}));
  EXPECT_EQ(choices.Hash(), ParseAutotuneResults(kText, "c.txt").Hash());
  EXPECT_THAT(PrintAutotuneResults(choices),
              HasSubstr("setting --amp\nsetting --batch-size 64\nend 5\n"));
  EXPECT_THAT(ErrorOf(With("end 3", "setting amp\nend 4")),
              HasSubstr("c.txt:9: expected a flag --NAME, got \"amp\""));
  EXPECT_THAT(ErrorOf(With("end 3", "setting --amp\nsetting --amp\nend 5")),
              HasSubstr("c.txt:10: a second setting for one flag"));
}

TEST(ChoiceFile, TheHashIsThatOfTheChoicesAlone) {
  const uint64_t hash = ParseAutotuneResults(kText, "c.txt").Hash();
  const auto of = [](const std::string& text) {
    return ParseAutotuneResults(text, "d.txt").Hash();
  };
  EXPECT_NE(hash, 0);
  EXPECT_EQ(of(With("0.5 ms", "0.7 ms")), hash);
  EXPECT_EQ(of(With("Some CPU", "Another")), hash);
  EXPECT_NE(of(With("= winograd", "= direct")), hash);
  EXPECT_NE(of(With("bf16 = f32", "bf16 = bf16")), hash);
  EXPECT_NE(of(With("x=2x16", "x=3x16")), hash);
  EXPECT_EQ(AutotuneResults().Hash(), 0);
  EXPECT_EQ(ir::AutotuneHashText(0), "none");
}

TEST(ChoiceFile, WhatIsDamagedIsNamedByItsLine) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("choices c.txt:0: not a file of choices"));
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("c.txt:1: not a file of choices"));
  EXPECT_THAT(ErrorOf(With("choices 2", "choices 0")),
              HasSubstr("c.txt:1: expected version 2, got 0; measure again "
                        "with --tune"));
  EXPECT_THAT(ErrorOf(With("threads 2\n", "threads two\n")),
              HasSubstr("c.txt:4: expected a number of threads, got two"));
  EXPECT_THAT(ErrorOf(With("candidate", "candidat")),
              HasSubstr("c.txt:6: unknown line \"candidat conv2d"));
  EXPECT_THAT(ErrorOf(With("f32 = winograd", "f31 = winograd")),
              HasSubstr("c.txt:6: expected PROBLEM DTYPE = CHOICE, got"));
  EXPECT_THAT(ErrorOf(With("bf16 = f32", "bf16 = f16")),
              HasSubstr("c.txt:8: expected f32 or bf16, got f16"));
  EXPECT_THAT(ErrorOf(With("groups=1 bf16 = direct", "groups=1 f32 = direct")),
              HasSubstr("c.txt:7: a second choice for one problem"));
  EXPECT_THAT(ErrorOf(With("end 3", "end 4")),
              HasSubstr("c.txt:9: expected 4 choices by the last line, got 3"));
  EXPECT_THAT(ErrorOf(With("end 3\n", "end 3\nend 3\n")),
              HasSubstr("c.txt:10: expected nothing after"));
  EXPECT_THAT(ErrorOf(With("library none\n", "")),
              HasSubstr("target, threads or library is missing"));
}

TEST(ChoiceFile, AFileThatWasCutIsRejectedWhereverThatWas) {
  const std::string text = kText;
  // All lengths except that without the last line break.
  for (size_t size = 0; size + 1 < text.size(); ++size) {
    EXPECT_NE(ErrorOf(text.substr(0, size)), "") << size;
  }
}

TEST(ChoiceFile, DamagedFilesAreReadOrRejected) {
  const auto counts = test::ReadDamaged(
      kText, 2000, ErrorCode::kGraph, [](const std::string& text) {
        const AutotuneResults choices = ParseAutotuneResults(text, "c.txt");
        EXPECT_EQ(PrintAutotuneResults(ParseAutotuneResults(
                      PrintAutotuneResults(choices), "c.txt")),
                  PrintAutotuneResults(choices));
      });
  EXPECT_GT(counts.accepted, 100);
  EXPECT_GT(counts.rejected, 1000);
}

// --- In a compilation --------------------------------------------------------

class ChosenCompilation : public testing::Test {
 protected:
  ChosenCompilation() {
    const auto graph = test::SmallResidual();
    for (const auto& node : graph->nodes()) {
      const std::string problem = ir::LibraryProblem(*node);
      if (problem.empty()) continue;
      choices_.candidates[{problem, DType::kF32}] = "plain";
    }
    choices_.origin = {"c.txt", "cpu-avx2", "any", "none",
                       compiler_.target().threads};
  }

  CompiledProgram Compile() {
    CompileOptions options;
    options.passes.choices = choices_;
    return codegen::Compile(test::SmallResidual(), ProgramKind::kEval,
                            compiler_, options);
  }
  std::string Rejection() {
    try {
      Compile();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kGraph);
      return error.what();
    }
    return "";
  }

  test::FakeCompiler compiler_;
  AutotuneResults choices_;
};

TEST_F(ChosenCompilation, TheHashIsInThePlanAndInEveryKernelsKey) {
  const CompiledProgram chosen = Compile();
  EXPECT_EQ(chosen.plan.choices, choices_.Hash());
  const std::string line =
      "choices " + ir::AutotuneHashText(choices_.Hash()) + "\n";
  EXPECT_THAT(Print(chosen.plan), HasSubstr(line));
  EXPECT_EQ(ParsePlan(SerializePlan(chosen.plan)).choices, choices_.Hash());

  choices_ = {};
  const CompiledProgram plain = Compile();
  EXPECT_EQ(plain.plan.choices, 0);
  EXPECT_THAT(Print(plain.plan), Not(HasSubstr("choices")));
  ASSERT_EQ(plain.plan.kernels.size(), chosen.plan.kernels.size());
  for (size_t i = 0; i < plain.plan.kernels.size(); ++i) {
    EXPECT_NE(plain.plan.kernels[i].fingerprint,
              chosen.plan.kernels[i].fingerprint);
    EXPECT_EQ(plain.plan.kernels[i].binary, chosen.plan.kernels[i].binary);
  }
}

TEST_F(ChosenCompilation, CountsConvolutionsWithAChoice) {
  auto counters = Compile().report.counters;
  EXPECT_GT(counters["convolutions"], 1);
  EXPECT_EQ(counters["chosen_convolutions"], counters["convolutions"]);
  const AutotuneResults::Key key = choices_.candidates.begin()->first;
  choices_.candidates.erase(key);
  counters = Compile().report.counters;
  EXPECT_LT(counters["chosen_convolutions"], counters["convolutions"]);
  // The precision can be chosen, too.
  choices_.precisions[key] = DType::kF32;
  counters = Compile().report.counters;
  EXPECT_EQ(counters["chosen_convolutions"], counters["convolutions"]);
}

TEST_F(ChosenCompilation, WhatWasMeasuredElsewhereIsRejected) {
  EXPECT_EQ(Rejection(), "");
  const AutotuneResults::Origin origin = choices_.origin;
  choices_.origin.target = "cpu-avx512";
  EXPECT_EQ(Rejection(),
            "autotune results c.txt: measured with another target: expected "
            "cpu-avx2, "
            "got cpu-avx512; measure again with --tune");
  choices_.origin = origin;
  choices_.origin.threads = 7;
  EXPECT_THAT(Rejection(),
              HasSubstr("with another number of threads: expected 2, got 7"));
  choices_.origin = origin;
  choices_.origin.library = "oneDNN 1.0";
  EXPECT_THAT(Rejection(), HasSubstr("expected none, got oneDNN 1.0"));
}

TEST_F(ChosenCompilation, ACandidateThatTheTargetLacksIsRejected) {
  choices_.candidates.begin()->second = "fancy";
  EXPECT_THAT(Rejection(), HasSubstr("in f32: expected plain, got fancy"));
}

}  // namespace
}  // namespace fusor::codegen
