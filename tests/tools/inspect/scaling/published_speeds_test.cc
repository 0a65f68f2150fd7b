// Compares the predictor with published tables in
// tests/golden/published_speeds.csv.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "models/model.h"
#include "tests/fakes/fake_compiler.h"
#include "tools/inspect/scaling/scale_model.h"

namespace fusor::inspect {
namespace {

struct Row {
  std::string table;  // such as "PyTorch resnet50-v1.5 fp32 128"
  std::string framework, cluster, arch, dtype, policy;
  int64_t batch, wire_bytes, nodes, gpus;
  double input_rate, speed;

  std::string name() const {
    return fmt::format("{} {}n{}g", table, nodes, gpus);
  }
};

std::vector<Row> ReadRows() {
  std::ifstream file(FUSOR_GOLDEN_DIR "/published_speeds.csv");
  std::vector<Row> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#") || line.starts_with("table,")) continue;
    std::stringstream stream(line);
    std::vector<std::string> cells;
    for (std::string cell; std::getline(stream, cell, ',');) {
      cells.push_back(cell);
    }
    rows.push_back({.table = fmt::format("{} {} {} b{}", cells.at(0), cells[2],
                                         cells[3], cells[4]),
                    .framework = cells[0],
                    .cluster = cells[1],
                    .arch = cells[2],
                    .dtype = cells[3],
                    .policy = cells[5],
                    .batch = std::stoll(cells[4]),
                    .wire_bytes = std::stoll(cells[6]),
                    .nodes = std::stoll(cells[8]),
                    .gpus = std::stoll(cells[9]),
                    .input_rate = std::stod(cells[7]),
                    .speed = std::stod(cells[10])});
  }
  return rows;
}

// Returns the timeline of the compiled step. Its total time comes from the
// table.
StepTimeline Modelled(const Row& row) {
  const test::FakeCompiler compiler("nvidia-a100");
  codegen::CompileOptions options;
  options.plan_only = true;
  if (row.dtype == "fp16") options.passes.precision.dtype = ir::DType::kF16;
  const codegen::CompiledProgram program = codegen::Compile(
      models::BuildModel(row.arch, models::Phase::kTrain, {.batch = row.batch})
          .graph,
      codegen::ProgramKind::kTrain, compiler, options);
  return TimelineOf(program.plan, *program.graph,
                    ReportPlan(program.plan, *program.graph, compiler));
}

class PublishedSpeeds : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    rows = ReadRows();
    for (const Row& row : rows) {
      speeds[row.table][{row.nodes, row.gpus}] = row.speed;
      if (!timelines.contains(row.table)) timelines[row.table] = Modelled(row);
    }
    for (auto& [table, timeline] : timelines) {
      const auto row =
          std::find_if(rows.begin(), rows.end(),
                       [&, t = table](const Row& r) { return r.table == t; });
      timeline = Stretched(
          timeline, static_cast<double>(row->batch) / speeds[table].at({1, 1}));
    }
  }

  static ScaleOptions Options(const Row& row) {
    ScaleOptions options{.nodes = row.nodes,
                         .gpus = row.gpus,
                         .batch = row.batch,
                         .policy = passes::ParseBucketPolicy("", row.policy),
                         .input_rate = row.input_rate};
    options.policy.element_bytes = row.wire_bytes;
    return options;
  }

  // Predicts one node from the table's speed of one rank, and several nodes
  // from its speed of one node.
  static ScalePrediction Predict(const Row& row) {
    ScaleOptions options = Options(row);
    if (row.nodes > 1) options.node_rate = speeds[row.table].at({1, row.gpus});
    return PredictScale(timelines.at(row.table), ir::FindCluster(row.cluster),
                        options);
  }

  static bool InputBound(Row row) {
    row.nodes = 1;
    return Predict(row).limit == ScaleLimit::kInput;
  }

  // Prints every row, the worst one and those that are far off. Returns the
  // mean absolute error.
  static double MeanError(const std::vector<Row>& of) {
    constexpr double kFar = 0.05;
    double sum = 0, worst = 0;
    std::string worst_row, far;
    for (const Row& row : of) {
      const ScalePrediction p = Predict(row);
      const double error = p.images_per_second / row.speed - 1;
      const char* input = InputBound(row) ? ", input-bound" : "";
      fmt::print(
          "{:<42} {:>9.2f} images/s, predicted {:>9.2f}, {:+5.1f} %, {}{}\n",
          row.name(), row.speed, p.images_per_second, 100 * error,
          LimitName(p.limit), input);
      sum += std::abs(error);
      if (std::abs(error) > kFar)
        far += fmt::format("\n  {}{}", row.name(), input);
      if (std::abs(error) > std::abs(worst)) {
        worst = error;
        worst_row = row.name();
      }
    }
    const double mean = sum / static_cast<double>(of.size());
    fmt::print("{} rows, mean error {:.2f} %, worst {:+.1f} %: {}\n", of.size(),
               100 * mean, 100 * worst, worst_row);
    fmt::print("more than {:g} % off, not explained:{}\n", 100 * kFar, far);
    return mean;
  }

  static std::vector<Row> rows;
  static std::map<std::string, std::map<std::pair<int64_t, int64_t>, double>>
      speeds;
  static std::map<std::string, StepTimeline> timelines;
};

std::vector<Row> PublishedSpeeds::rows;
std::map<std::string, std::map<std::pair<int64_t, int64_t>, double>>
    PublishedSpeeds::speeds;
std::map<std::string, StepTimeline> PublishedSpeeds::timelines;

// Only the two bandwidths, one per cluster, were fitted.
TEST_F(PublishedSpeeds, UseClustersWithoutOtherFittedConstants) {
  for (const char* name : {"v100-dlperf", "v100-paddle"}) {
    ir::Cluster cluster = ir::FindCluster(name);
    EXPECT_EQ(cluster.jitter, 0);
    cluster.name = "";
    cluster.network_gb_per_s = 0;
    ir::Cluster other = ir::FindCluster("v100-dlperf");
    other.name = "";
    other.network_gb_per_s = 0;
    EXPECT_EQ(cluster, other);
  }
}

TEST_F(PublishedSpeeds, OfSeveralNodesFollowFromOne) {
  std::vector<Row> chosen;
  for (const Row& row : rows) {
    const bool own = row.framework == "PyTorch" || row.framework == "Paddle";
    if (own && row.nodes > 1) chosen.push_back(row);
  }
  ASSERT_EQ(chosen.size(), 18u);
  EXPECT_LE(MeanError(chosen), 0.03);
}

TEST_F(PublishedSpeeds, InFp32FollowFromOneRankOrNode) {
  std::vector<Row> chosen;
  for (const Row& row : rows) {
    if (row.dtype == "fp32" && row.nodes * row.gpus > 1) chosen.push_back(row);
  }
  ASSERT_EQ(chosen.size(), 22u);
  EXPECT_LE(MeanError(chosen), 0.04);
}

// ResNet-50 on 4 x 8 ranks with 5 GB/s.
TEST_F(PublishedSpeeds, TheExactPartitionOverlapsMoreThanFixedCaps) {
  const Row* row = nullptr;
  for (const Row& r : rows) {
    if (r.framework == "PyTorch" && r.dtype == "fp32" && r.nodes == 4) row = &r;
  }
  ASSERT_NE(row, nullptr);
  const ir::Cluster cluster = ir::FindCluster("v100-dlperf");
  ASSERT_EQ(cluster.network_gb_per_s, 5);
  const auto not_overlapped = [&](const char* policy) {
    ScaleOptions options = Options(*row);
    options.policy = passes::ParseBucketPolicy("", policy);
    const ScalePrediction p =
        PredictScale(timelines.at(row->table), cluster, options);
    fmt::print("{:<8} {:>3} buckets expose {:.2f} ms\n", policy,
               p.buckets.size(), p.not_overlapped * 1e3);
    return p.not_overlapped;
  };
  EXPECT_LE(not_overlapped("exact"), 0.5e-3);
  for (const char* cap : {"cap:16", "cap:26", "cap:40", "cap:67"}) {
    const double seconds = not_overlapped(cap);
    EXPECT_GE(seconds, 2e-3) << cap;
    EXPECT_LE(seconds, 20e-3) << cap;
  }
}

// With a batch of 32, VGG16's all-reduces take longer than its backward pass.
TEST_F(PublishedSpeeds, AShardedOptimizerOverlapsMoreThanTheBackwardPass) {
  for (const Row& row : rows) {
    if (row.arch != "vgg16" || row.batch != 32 || row.nodes != 4) continue;
    ScaleOptions options = Options(row);
    options.policy = {.element_bytes = 4};
    const StepTimeline& timeline = timelines.at(row.table);
    const ir::Cluster cluster = ir::FindCluster(row.cluster);
    const double reduced = PredictScale(timeline, cluster, options).speedup;
    options.sharded = true;
    const double sharded = PredictScale(timeline, cluster, options).speedup;
    fmt::print("{}: {:.2f}, sharded {:.2f}\n", row.name(), reduced, sharded);
    EXPECT_GT(sharded, 1.1 * reduced);
  }
}

}  // namespace
}  // namespace fusor::inspect
