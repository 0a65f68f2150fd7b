#include "tools/inspect/observers/check_numerics.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>

#include "codegen/compiler.h"
#include "ir/io/parser.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/state_store.h"
#include "tests/testing/graph_text.h"
#include "tools/inspect/observers/stats_trace.h"
#include "tools/inspect/observers/step_values.h"

namespace fusor::inspect {
namespace {

using ::testing::HasSubstr;

// State is updated in place, so the operands are lost when NaN is found.
constexpr char kModel[] = R"(graph roots {
  %x = data : f32[4]
  %s = statistic {init="constant", value=1.0} : f32[4]
  %a = add(%x, %s) : f32[4] @"head"
  %b = sqrt(%a) : f32[4] @"root"
  %c = mul(%b, %s) : f32[4] @"tail"
  return %b as "y", %c as "s" -> %s
})";

class CheckNumericsTest : public testing::Test {
 protected:
  CheckNumericsTest() : session_(runtime::LoadBackend("cpu"), {}) {
    codegen::CompileOptions options;
    program_ = &session_.Compile(test::ParseOrDie(kModel),
                                 codegen::ProgramKind::kEval, options);
    session_.state().Initialize(0);
  }

  void Step(const std::vector<float>& x) {
    program_->SetInput(program_->FindInput("x"), x.data(),
                       x.size() * sizeof(float));
    program_->Run();
  }

  runtime::Session session_;
  runtime::Program* program_ = nullptr;
  std::vector<NonFinite> found_;
  const NumericsOptions collect_{
      .fail = false,
      .snapshot_folder = "",
      .report = [this](const NonFinite& f) { found_.push_back(f); }};
};

TEST_F(CheckNumericsTest, NamesTheOpInsideTheFusion) {
  NumericsChecker checker(collect_);
  session_.Observe(&checker);
  Step({0, 1, 2, 3});
  EXPECT_TRUE(found_.empty());
  session_.state().Write("s", std::vector<float>{1, 1, 1, 1});
  Step({0, -5, 2, -7});
  ASSERT_EQ(found_.size(), 1u);
  EXPECT_EQ(found_[0].run, 1);
  EXPECT_EQ(found_[0].op, "sqrt");
  EXPECT_EQ(found_[0].op_location, "root");
  EXPECT_EQ(found_[0].elements, 2);
  EXPECT_EQ(found_[0].of, 4);
  Step({0, -5, 2, -7});
  EXPECT_EQ(found_.size(), 1u) << "the first is enough";
}

TEST_F(CheckNumericsTest, BlamesInputsThatAreNotFinite) {
  NumericsChecker checker(collect_);
  session_.Observe(&checker);
  Step({0, NAN, 2, 3});
  ASSERT_EQ(found_.size(), 1u);
  EXPECT_EQ(found_[0].what, "input x");
  EXPECT_EQ(found_[0].elements, 1);
  EXPECT_THAT(found_[0].Describe(), HasSubstr("input x"));
}

TEST_F(CheckNumericsTest, FailingEndsTheStepWithOneLine) {
  NumericsChecker checker({.fail = true});
  session_.Observe(&checker);
  try {
    Step({0, -5, 2, 3});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    EXPECT_THAT(error.what(), HasSubstr("first by sqrt of b at root"));
  }
}

TEST_F(CheckNumericsTest, SnapshotHoldsTheOperandsFromBeforeTheStep) {
  const std::string folder = testing::TempDir() + "/numerics";
  NumericsOptions options = collect_;
  options.snapshot_folder = folder;
  NumericsChecker checker(options);
  session_.Observe(&checker);
  session_.state().Write("s", std::vector<float>{0.5, 1, 2, 4});
  Step({0, -5, 2, 3});
  ASSERT_EQ(found_.size(), 1u);
  std::vector<uint8_t> bytes;
  ReadFile(found_[0].snapshot + "/module.txt", ErrorCode::kUsage, bytes);
  const auto module = ir::Parse(std::string(bytes.begin(), bytes.end()));
  const auto inputs =
      ReadInputs(found_[0].snapshot + "/inputs.safetensors", *module);
  ASSERT_EQ(inputs.size(), 2u);
  bool has_state = false;
  for (const ir::Tensor& input : inputs) {
    has_state |= input.data == std::vector<double>{0.5, 1, 2, 4};
  }
  EXPECT_TRUE(has_state) << "in-place operands are copied before the step";
  const auto results = ir::Interpret(*module, inputs, ir::EvalMode::kTyped);
  EXPECT_TRUE(std::isnan(results[0].data[1]));
  std::filesystem::remove_all(folder);
}

TEST_F(CheckNumericsTest, UnwritableSnapshotFolderIsAnError) {
  NumericsOptions options = collect_;
  options.snapshot_folder = "/proc/none";
  NumericsChecker checker(options);
  session_.Observe(&checker);
  EXPECT_THROW(Step({0, -5, 2, 3}), Error);
}

TEST_F(CheckNumericsTest, ATraceSeesInputsAndEveryResult) {
  std::string text;
  StatsTracer tracer([&](const std::string& line) { text += line + "\n"; });
  session_.Observe(&tracer);
  Step({0, 1, 2, 3});
  Step({0, 1, 2, 3});
  const Trace trace = ParseTrace(text, "trace");
  std::vector<std::string> names;
  for (const TraceEntry& entry : trace.entries) {
    if (entry.run == 0) names.push_back(entry.name);
  }
  EXPECT_THAT(names, testing::IsSupersetOf({"x", "s", "b", "c"}));
  EXPECT_EQ(trace.entries.back().run, 1);
  EXPECT_EQ(trace.entries[0].step, -1);
  EXPECT_EQ(trace.entries[0].stats.max, 3);
}

}  // namespace
}  // namespace fusor::inspect
