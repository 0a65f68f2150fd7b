// The kernel that converts pixel blocks to channels. Compares it with the
// interpreter, and its emulated GPU text with the kernel interpreter.

#include <gtest/gtest.h>

#include "codegen/lower/lower.h"
#include "ir/interpreter/interpreter.h"
#include "ir/verifier.h"
#include "passes/passes.h"
#include "tests/fakes/emulated_kernels.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/kernel_runner.h"
#include "tests/testing/numeric.h"
#include "tools/inspect/report/traffic.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::Graph;
using ir::InputRole;
using ir::Tensor;

// Returns the node as GenerateKernels creates it.
std::unique_ptr<Graph> Generated(const ir::Shape& images, DType result,
                                 int64_t block = 2, int64_t multiple = 8) {
  auto graph = std::make_unique<Graph>();
  const ir::Shape pixels{block * images[3]};
  ir::Node* node = graph->AddNode(
      "space_to_depth",
      {graph->AddInput({DType::kU8, images, {}}, InputRole::kData, "images"),
       graph->AddInput({DType::kF32, pixels, {}}, InputRole::kData, "mean"),
       graph->AddInput({DType::kF32, pixels, {}}, InputRole::kData, "scale")},
      {{"block", block},
       {"result_dtype", std::string(DTypeName(result))},
       {"row_multiple", multiple}});
  ir::TensorType type = node->output()->type();
  type.layout = ir::ParseLayout("acdb");
  node->output()->set_type(type);
  graph->AddOutput(node->output(), "blocks");
  const test::ChannelsLastCompiler compiler("nvidia-h200");
  passes::PassContext context(compiler, {});
  EXPECT_TRUE(passes::GenerateKernels(*graph, context));
  ir::Verify(*graph);
  return graph;
}

TEST(SpaceToDepthKernel, ComputesWhatTheInterpreterDoes) {
  std::vector<CompiledKernel> kernels;
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    struct Case {
      ir::Shape images;
      int64_t block, multiple;
    };
    for (const auto& [images, block, multiple] :
         {Case{{2, 8, 12, 3}, 2, 8}, Case{{1, 2, 2, 1}, 2, 8},
          Case{{2, 6, 4, 4}, 2, 8}, Case{{2, 7, 9, 3}, 1, 8},
          Case{{2, 5, 8, 3}, 1, 4}, Case{{1, 3, 3, 1}, 1, 4}}) {
      const auto graph = Generated(images, dtype, block, multiple);
      const std::vector<Tensor> inputs{
          test::RandomTensor(graph->input(0)->type(), 1, 0, 256),
          test::RandomTensor(graph->input(1)->type(), 2, 90, 130),
          test::RandomTensor(graph->input(2)->type(), 3, 0.01, 0.02)};
      const auto expected = ir::Interpret(*graph, inputs, ir::EvalMode::kTyped);
      for (const char* target : {"nvidia-h200", "cpu-avx512"}) {
        const auto actual =
            test::RunWithKernels(*graph, inputs, ir::FindTarget(target));
        const double rounding = dtype == DType::kBF16  ? 8e-3
                                : dtype == DType::kF16 ? 1e-3
                                                       : 1e-6;
        EXPECT_TRUE(test::AllClose(actual[0], expected[0], rounding, 1e-5))
            << target;
      }
      if (images[3] != 3) continue;
      kernels.push_back(
          {LowerFusion(*graph->nodes()[0], ir::FindTarget("nvidia-h200"))
               .kernel});
    }
  }
  for (const std::string& problem : test::CompareWithInterpreter(kernels, 1)) {
    ADD_FAILURE() << problem;
  }
}

// Images are read once and blocks written once, including borders.
TEST(SpaceToDepthKernel, MovesEachTensorOnce) {
  const auto graph = Generated({256, 224, 224, 3}, DType::kF16);
  const Kernel kernel =
      LowerFusion(*graph->nodes()[0], ir::FindTarget("nvidia-h200")).kernel;
  Verify(kernel);
  EXPECT_EQ(inspect::TrafficBytes(kernel),
            256 * (224 * 224 * 3 + 113 * 113 * 16 * 2) + 2 * 6 * 4);
  const auto padded = Generated({256, 224, 224, 3}, DType::kF16, 1, 8);
  const Kernel pads =
      LowerFusion(*padded->nodes()[0], ir::FindTarget("nvidia-h200")).kernel;
  Verify(pads);
  EXPECT_EQ(inspect::TrafficBytes(pads),
            256 * 224 * 224 * (3 + 8 * 2) + 2 * 3 * 4);
}

}  // namespace
}  // namespace fusor::codegen
