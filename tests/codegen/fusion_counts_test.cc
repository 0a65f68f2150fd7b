// Fusion is general and not limited to patterns: graphs that no pattern pass
// matches compile to at most as many launches (kernels and library calls) as
// tests/golden/fusion_counts.txt lists. lower_fusion_test.cc and
// tests/passes/random_pipeline_test.cc test their results.

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "codegen/compiler.h"
#include "ir/builder.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/random_graph.h"

namespace fusor::codegen {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::InputRole;
using ir::Value;

constexpr uint64_t kRandomGraphs = 200;
constexpr char kGolden[] = FUSOR_GOLDEN_DIR "/fusion_counts.txt";

using Counts = std::map<std::string, int64_t>;

std::unique_ptr<Graph> Chain() {
  auto graph = std::make_unique<Graph>("chain");
  Builder b(*graph);
  Value* x =
      graph->AddInput({DType::kF32, {33, 17}, {}}, InputRole::kData, "x");
  for (int i = 0; i < 10; ++i) x = b.Tanh(b.Plus(b.Times(x, 1.5), 0.25));
  graph->AddOutput(x, "y");
  return graph;
}

// Returns two blocks of layer norm, linear, GELU, linear with a residual, and a
// loss.
std::unique_ptr<Graph> Mlp() {
  constexpr int64_t kBatch = 32, kWidth = 64, kHidden = 256, kClasses = 10;
  auto graph = std::make_unique<Graph>("mlp");
  Builder b(*graph);
  const auto input = [&](ir::Shape shape, InputRole role,
                         const std::string& name) {
    return graph->AddInput({DType::kF32, std::move(shape), {}}, role,
                           b.location() + "." + name);
  };
  const auto linear = [&](Value* x, int64_t out, const std::string& name) {
    const Builder::Scope scope(b, name);
    return b.Linear(
        x, input({out, x->type().shape[1]}, InputRole::kWeight, "weight"),
        input({out}, InputRole::kBias, "bias"));
  };
  Value* x = input({kBatch, kWidth}, InputRole::kData, "x");
  for (int i = 0; i < 2; ++i) {
    const Builder::Scope scope(b, "block" + std::to_string(i));
    Value* h =
        b.LayerNorm(x, input({kWidth}, InputRole::kNormScale, "gamma"),
                    input({kWidth}, InputRole::kNormShift, "beta"), 1e-5);
    h = linear(b.Gelu(linear(h, kHidden, "up")), kWidth, "down");
    x = b.Plus(x, h);
  }
  Value* labels =
      graph->AddInput({DType::kI32, {kBatch}, {}}, InputRole::kData, "labels");
  Value* losses = b.CrossEntropy(linear(x, kClasses, "head"), labels, {});
  graph->AddOutput(b.ReduceMean(losses, {0}), "loss");
  return graph;
}

int64_t Launches(std::unique_ptr<Graph> graph, ProgramKind kind) {
  const test::FakeCompiler compiler;
  const CompileReport report =
      Compile(std::move(graph), kind, compiler,
              {.verification = passes::Verification::kAll})
          .report;
  return report.kernels + report.library_calls;
}

Counts CountAll() {
  Counts counts;
  counts["chain"] = Launches(Chain(), ProgramKind::kEval);
  counts["mlp_forward"] = Launches(Mlp(), ProgramKind::kEval);
  counts["mlp_step"] = Launches(Mlp(), ProgramKind::kTrain);
  const test::RandomGraphOptions options{
      .nodes = 25,
      .ops = test::kElementwise | test::kBroadcast | test::kReduce};
  for (uint64_t seed = 0; seed < kRandomGraphs; ++seed) {
    counts["random_" + std::to_string(seed)] =
        Launches(test::RandomGraph(seed, options), ProgramKind::kEval);
  }
  return counts;
}

Counts Stored() {
  Counts counts;
  std::ifstream file(kGolden);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    int64_t count = 0;
    if (words >> name >> count) counts[name] = count;
  }
  return counts;
}

TEST(FusionCounts, AreThoseStored) {
  const Counts counts = CountAll();
  const Counts stored = Stored();
  EXPECT_EQ(counts.at("chain"), 1);
  for (const auto& [name, count] : counts) {
    const auto it = stored.find(name);
    if (it == stored.end()) {
      ADD_FAILURE() << name << ": " << count << " launches, none stored";
    } else if (count > it->second) {
      ADD_FAILURE() << name << ": " << count << " launches, more than the "
                    << it->second << " stored";
    } else if (count < it->second) {
      ADD_FAILURE() << name << ": " << count << " launches, fewer than the "
                    << it->second << " stored: lower the stored count";
    }
  }
  EXPECT_EQ(stored.size(), counts.size());
  if (!HasFailure()) return;
  const std::string path = testing::TempDir() + "fusion_counts.txt";
  std::ofstream file(path);
  for (const auto& [name, count] : counts) file << name << " " << count << "\n";
  ADD_FAILURE() << "the counts of this build are in " << path << "; copy it to "
                << kGolden << " if they are an improvement";
}

}  // namespace
}  // namespace fusor::codegen
