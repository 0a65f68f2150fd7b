#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <string>
#include <vector>

#include "ir/io/parser.h"
#include "ir/io/printer.h"
#include "ir/io/serialize_graph.h"
#include "models/model.h"
#include "passes/pipeline.h"
#include "tests/testing/bare_target.h"

namespace fusor::models {
namespace {

void ExpectRoundTrips(const ir::Graph& graph) {
  const std::string text = ir::Print(graph);
  EXPECT_TRUE(SameGraph(graph, *ir::Parse(text)));
  const std::string bytes = ir::Serialize(graph);
  EXPECT_TRUE(SameGraph(graph, *ir::Deserialize(bytes)));
  EXPECT_EQ(ir::Serialize(*ir::Parse(text)), bytes);
}

class ModelText : public ::testing::TestWithParam<std::string> {
 protected:
  Model Build(Phase phase) const {
    const bool cifar = GetParam() == "resnet20-cifar";
    return BuildModel(GetParam(), phase,
                      {.batch = 2, .image_size = cifar ? 32 : 64});
  }
};

TEST_P(ModelText, EvaluationReadsBackEqual) {
  ExpectRoundTrips(*Build(Phase::kEval).graph);
}

// Returns values of nodes, including those inside fusions, without a source
// line of the model.
std::vector<std::string> WithoutLine(const ir::Graph& graph) {
  std::vector<std::string> found;
  for (const auto& node : graph.nodes()) {
    const ir::SourceLine line = node->location().source;
    if (line.empty() || !line.file().starts_with("models/")) {
      found.push_back(node->output()->name() + Print(node->location()));
    }
    if (node->body() == nullptr) continue;
    for (const std::string& name : WithoutLine(*node->body())) {
      found.push_back(name);
    }
  }
  return found;
}

passes::PassOptions WithEverything() {
  passes::PassOptions options;
  options.precision.dtype = ir::DType::kF16;
  options.loss_scale.dynamic = true;
  options.micro_batches = passes::MicroBatches::kFinish;
  options.optimizer.clip_norm = 1;
  options.optimizer.ema_decay = 0.9;
  return options;
}

// Includes everything that passes add: gradients, updates, casts, copies, loss
// scaling.
TEST_P(ModelText, EveryOpHasALineOfTheModelAfterEveryPass) {
  const test::BareTarget target;
  for (const auto& options : {passes::PassOptions(), WithEverything()}) {
    const Model model = Build(Phase::kTrain);
    passes::PassContext context(target, options);
    for (const auto stage : {passes::Stage::kForward, passes::Stage::kTraining,
                             passes::Stage::kOptimize}) {
      passes::RunnerOptions runner;
      RunPipeline(*model.graph, context, stage, runner);
      EXPECT_THAT(WithoutLine(*model.graph), ::testing::IsEmpty());
    }
  }
}

// Tests the graph as built, differentiated and fused.
TEST_P(ModelText, TrainingStepReadsBackEqualAtEveryStage) {
  const Model model = Build(Phase::kTrain);
  ExpectRoundTrips(*model.graph);
  const test::BareTarget target;
  passes::PassContext context(target, {});
  for (const auto stage : {passes::Stage::kForward, passes::Stage::kTraining,
                           passes::Stage::kOptimize}) {
    RunPipeline(*model.graph, context, stage, {});
    ExpectRoundTrips(*model.graph);
  }
}

std::string TestName(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

// Without the deep networks, which repeat the blocks of others.
std::vector<std::string> CanonicalNames() {
  std::vector<std::string> names = ArchNames();
  std::erase_if(names, [](const std::string& name) {
    return CanonicalArch(name) != name ||
           name.find("101") != std::string::npos ||
           name.find("152") != std::string::npos;
  });
  return names;
}

INSTANTIATE_TEST_SUITE_P(EveryArch, ModelText,
                         ::testing::ValuesIn(CanonicalNames()), TestName);

}  // namespace
}  // namespace fusor::models
