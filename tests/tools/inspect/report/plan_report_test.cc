#include "tools/inspect/report/plan_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "codegen/compiler.h"
#include "models/model.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/graph_text.h"
#include "tools/inspect/report/plan_view.h"

namespace fusor::inspect {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

codegen::CompiledProgram CompileCifar(
    const test::FakeCompiler& compiler,
    const codegen::CompileOptions& options = {}, int64_t norm_ranks = 1) {
  auto graph = models::BuildModel("resnet20-cifar", models::Phase::kTrain,
                                  {.batch = 2,
                                   .image_size = 32,
                                   .num_classes = 10,
                                   .norm_ranks = norm_ranks})
                   .graph;
  return codegen::Compile(std::move(graph), codegen::ProgramKind::kTrain,
                          compiler, options);
}

class PlanReportTest : public ::testing::Test {
 protected:
  PlanReport Report(const std::vector<double>& measured_ms = {}) const {
    return ReportPlan(program_.plan, *program_.graph, compiler_, measured_ms);
  }

  test::FakeCompiler compiler_;
  codegen::CompiledProgram program_ = CompileCifar(compiler_);
};

TEST_F(PlanReportTest, ClassesAddUpToTheWhole) {
  const PlanReport report = Report();
  ASSERT_EQ(report.steps.size(), program_.plan.steps.size());
  int64_t steps = 0, bytes = 0, flops = 0;
  double us = 0;
  for (const ClassCost& cost : report.classes) {
    steps += cost.steps;
    bytes += cost.bytes;
    flops += cost.flops;
    us += cost.modelled_us;
  }
  EXPECT_EQ(steps, report.total.steps);
  EXPECT_EQ(bytes, program_.report.bytes_moved);
  EXPECT_EQ(flops, report.total.flops);
  EXPECT_DOUBLE_EQ(us, report.total.modelled_us);
  for (size_t i = 1; i < report.classes.size(); ++i) {
    EXPECT_GE(report.classes[i - 1].us(), report.classes[i].us());
  }
}

TEST_F(PlanReportTest, SeparatesFusionsByPhase) {
  std::map<std::string, int64_t> steps;
  for (const ClassCost& cost : Report().classes) {
    steps[cost.op_class] = cost.steps;
  }
  EXPECT_GT(steps["fusion, forward"], 15);
  EXPECT_GT(steps["fusion, backward"], 15);
  EXPECT_GE(steps["fusion, update"], 2);
  EXPECT_EQ(steps["conv2d"], 21);
}

TEST_F(PlanReportTest, NoEstimateIsFasterThanItsLimit) {
  for (const StepCost& cost : Report().steps) {
    EXPECT_GE(cost.modelled_us, cost.limit_us);
    EXPECT_LE(cost.share(), 1);
    EXPECT_EQ(cost.measured_us, -1);
  }
}

// The kernel loads f32 and multiplies f16.
TEST(KernelArithmetic, IsThatOfItsProduct) {
  const test::FakeCompiler compiler("nvidia-h200");
  const auto program =
      codegen::Compile(test::ParseOrDie(R"(graph g {
        %x = data : f32[4096,4096]
        %w = data : f16[4096,4096]
        %c = cast(%x) {dtype="f16"} : f16[4096,4096]
        %y = matmul(%c, %w) {algorithm="generated"} : f16[4096,4096]
        return %y as "y"
      })"),
                       codegen::ProgramKind::kEval, compiler, {});
  ASSERT_EQ(program.plan.steps.size(), 1);
  const PlanReport report =
      ReportPlan(program.plan, *program.graph, compiler, {});
  EXPECT_NEAR(report.steps[0].limit_us,
              2e-3 * 4096 * 4096 * 4096 / compiler.target().peak_gflops_16, 5);
}

TEST_F(PlanReportTest, MeasuredTimesReplaceEstimates) {
  const std::vector<double> ms(program_.plan.steps.size(), 0.5);
  const PlanReport report = Report(ms);
  EXPECT_DOUBLE_EQ(report.steps[0].us(), 500);
  EXPECT_DOUBLE_EQ(report.total.measured_us,
                   500.0 * static_cast<double>(ms.size()));
  EXPECT_DOUBLE_EQ(report.steps[3].share(), report.steps[3].limit_us / 500);
}

TEST_F(PlanReportTest, TheTraceHasOneEventPerStepWithoutOverlap) {
  const PlanReport report = Report();
  const json trace = json::parse(ChromeTrace(program_.plan, report).dump());
  size_t events = 0;
  double end = 0;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++events;
    EXPECT_GE(event["ts"].get<double>(), end);
    EXPECT_GT(event["dur"].get<double>(), 0);
    end = event["ts"].get<double>() + event["dur"].get<double>();
  }
  EXPECT_EQ(events, program_.plan.steps.size());
  EXPECT_DOUBLE_EQ(end, report.total.modelled_us);
}

// An all-reduce of n bytes takes 1 ms plus n ns and overlaps with everything.
// An all-gather takes half of that.
TEST_F(PlanReportTest, CollectivesTakeTheTimeOfTheNetworkModel) {
  codegen::CompileOptions options;
  options.passes.world_size = 4;
  options.passes.buckets = passes::ParseBucketPolicy("policy", "one");
  const passes::CollectiveCost network{{{1e-3, 1e-9}}};
  const codegen::CompiledProgram program = CompileCifar(compiler_, options, 4);
  const PlanReport report =
      ReportPlan(program.plan, *program.graph, compiler_, {}, network);
  const json out = PlanReportJson(program.plan, report, compiler_.target());
  ASSERT_GT(out["collectives"].size(), 20U);
  double last = 0;
  for (const json& sum : out["collectives"]) {
    const double share = sum["op"] == "all_gather" ? 0.5 : 1;
    const double start = sum["start_ms"].get<double>();
    EXPECT_NEAR(sum["end_ms"].get<double>() - start,
                share * (1 + 1e-6 * sum["bytes"].get<double>()), 1e-9);
    EXPECT_GE(start, last);
    last = sum["end_ms"].get<double>();
  }
  EXPECT_EQ(out["collectives"].back()["op"], "all_reduce");
  EXPECT_EQ(out["collectives"].back()["tensors"], 65);
  EXPECT_EQ(out["collectives"].back()["dtype"], "f32");
  double serial = 0;
  for (const StepCost& cost : report.steps) {
    EXPECT_EQ(cost.bound == Bound::kNetwork,
              program.plan.steps[cost.step].stream == 1);
    if (cost.bound != Bound::kNetwork) serial += cost.modelled_us;
  }
  EXPECT_NEAR(report.total.modelled_us, serial, 1e-6);
  const CollectiveTimeline communication =
      CollectiveTimelineOf(program.plan, report);
  EXPECT_EQ(communication.buckets(), 1);
  EXPECT_EQ(communication.bucket_bytes(), out["collectives"].back()["bytes"]);
  EXPECT_EQ(communication.collectives.size(), out["collectives"].size());
  EXPECT_THAT(PlanReportText(program.plan, report, compiler_.target(), 0),
              AllOf(HasSubstr("all-reduces"), HasSubstr("all-gathers"),
                    HasSubstr("step ends at")));
}

// a takes 10 us. Its all-reduce (15 us) overlaps with b (10 us), and c waits
// for both: for 5 us nothing is computed.
TEST(CollectiveTimeline, IsNotOverlappedWithoutComputation) {
  codegen::Plan plan;
  plan.num_events = 2;
  const ir::TensorType type{ir::DType::kF32, {250}, {}};
  plan.calls = {
      {.op = ir::OpKind::kAllReduce, .operands = {type}, .results = {type}}};
  plan.steps = {{.stream = 0, .records = 0, .name = "a"},
                {.kind = codegen::StepKind::kCollective,
                 .stream = 1,
                 .waits = {0},
                 .records = 1,
                 .name = "sum"},
                {.stream = 0, .name = "b"},
                {.stream = 0, .waits = {1}, .name = "c"}};
  PlanReport report;
  for (int s = 0; s < 4; ++s) {
    report.steps.push_back({.step = s, .modelled_us = s == 1 ? 15.0 : 10.0});
  }
  report.total.modelled_us = 30;
  const CollectiveTimeline communication = CollectiveTimelineOf(plan, report);
  EXPECT_EQ(communication.end_us, 35);
  EXPECT_EQ(communication.not_overlapped_us, 5);
  EXPECT_EQ(communication.communication_us(), 15);
  ASSERT_EQ(communication.collectives.size(), 1U);
  EXPECT_EQ(communication.collectives[0].step, 1);
  EXPECT_EQ(communication.collectives[0].bytes, 1000);
  EXPECT_TRUE(communication.collectives[0].sums);
}

TEST(ChromeTrace, StreamsOverlapAndWaitForEvents) {
  codegen::Plan plan;
  plan.num_events = 1;
  plan.steps = {{.stream = 0, .records = 0, .name = "a"},
                {.stream = 0, .name = "b"},
                {.stream = 1, .waits = {0}, .name = "c"}};
  PlanReport report;
  for (int s = 0; s < 3; ++s) {
    report.steps.push_back({.step = s, .modelled_us = 10});
  }
  std::map<std::string, std::pair<int, double>> placed;
  const json trace = ChromeTrace(plan, report);
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") placed[event["name"]] = {event["tid"], event["ts"]};
  }
  EXPECT_EQ(placed["a"], std::pair(0, 0.0));
  EXPECT_EQ(placed["b"], std::pair(0, 10.0));
  EXPECT_EQ(placed["c"], std::pair(1, 10.0));
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST_F(PlanReportTest, TheRooflineHasADotForEachStepThatComputes) {
  const PlanReport report = Report();
  size_t computing = 0;
  for (const StepCost& cost : report.steps) {
    computing += cost.flops > 0 && cost.kind != "copy" ? 1 : 0;
  }
  const std::string svg = RooflineSvg(report, compiler_.target(), "a < b");
  EXPECT_EQ(Count(svg, "<title>"), computing);
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf\"")));
}

TEST_F(PlanReportTest, TheTextListsClassesAndLongestSteps) {
  const std::string text =
      PlanReportText(program_.plan, Report(), compiler_.target(), 3);
  EXPECT_THAT(text, HasSubstr("ms: estimated"));
  EXPECT_THAT(text, HasSubstr("\nconv2d_grad_weight "));
  EXPECT_THAT(text, HasSubstr("\ntotal "));
  const size_t longest = text.find("\nlongest steps");
  ASSERT_NE(longest, std::string::npos);
  EXPECT_EQ(Count(text.substr(longest), "\n"), 5);
}

TEST_F(PlanReportTest, TheJsonHasStableKeys) {
  const json out = PlanReportJson(program_.plan, Report(), compiler_.target());
  const auto keys = [](const json& object) {
    std::string text;
    for (const auto& [key, value] : object.items()) text += key + " ";
    return text;
  };
  EXPECT_EQ(
      keys(out),
      "collectives op_classes planned_lower_bound_bytes planned_peak_bytes "
      "steps target total ");
  EXPECT_EQ(keys(out["steps"][0]),
            "bound bytes flops limit_us location measured_us modelled_us name "
            "op_class phase share_of_limit source ");
  EXPECT_EQ(keys(out["op_classes"]["conv2d"]),
            "bytes flops limit_us measured_us modelled_us share_of_limit "
            "steps ");
  EXPECT_TRUE(out["total"]["measured_us"].is_null());
}

TEST_F(PlanReportTest, ThePageIsOneFileThatNamesNoAddress) {
  const std::string page = PlanPage(program_.plan, *program_.graph, Report(),
                                    compiler_.target(), "a model");
  EXPECT_NE(page.find("Plan of a model"), std::string::npos);
  for (const char* reference : {"http:", "https:", "src=", "href=", "url("}) {
    EXPECT_EQ(page.find(reference), std::string::npos) << reference;
  }
  EXPECT_TRUE(page == PlanPage(program_.plan, *program_.graph, Report(),
                               compiler_.target(), "a model"));
}

}  // namespace
}  // namespace fusor::inspect
