// Kernels of pooling, depthwise convolutions and copies between layouts.
// Compares them with the interpreter, and their emulated GPU text with the
// kernel interpreter.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "codegen/lower/lower.h"
#include "ir/builder.h"
#include "ir/interpreter/interpreter.h"
#include "ir/verifier.h"
#include "passes/fusion/outline.h"
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
using ir::Tensor;
using ir::TensorType;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Pool {
  ir::Shape image;
  std::vector<int64_t> window, stride, pad;
};

// Windows that overlap, touch, or skip rows, that extend beyond the image on
// all sides, or that do not reach its end.
std::vector<Pool> Pools() {
  return {{{2, 16, 8, 8}, {3, 3}, {2, 2}, {1, 1}},
          {{2, 5, 7, 9}, {2, 2}, {2, 2}, {0, 0}},
          {{1, 8, 6, 6}, {3, 3}, {1, 1}, {1, 1}},
          {{3, 9, 11, 7}, {5, 3}, {2, 1}, {2, 0}},
          {{2, 8, 9, 10}, {2, 1}, {3, 4}, {1, 0}},
          {{1, 3, 4, 4}, {4, 4}, {4, 4}, {0, 0}},
          {{1, 8, 5, 5}, {5, 5}, {1, 1}, {2, 2}}};
}

class PoolKernelTest : public testing::TestWithParam<DType> {
 protected:
  TensorType Type(const ir::Shape& shape, DType dtype) const {
    return {dtype, shape, ir::ParseLayout(layout_)};
  }

  // Returns a graph of one node as GenerateKernels creates it. Results not in
  // `wanted` are unused.
  std::unique_ptr<Graph> Generated(const std::string& op,
                                   const std::vector<TensorType>& operands,
                                   const ir::Attrs& attrs,
                                   std::vector<size_t> wanted = {0}) const {
    auto graph = std::make_unique<Graph>();
    std::vector<ir::Value*> inputs;
    for (const TensorType& type : operands) {
      inputs.push_back(graph->AddInput(type, ir::InputRole::kData, "x"));
    }
    ir::Node* node = graph->AddNode(op, inputs, attrs);
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      TensorType type = node->output(i)->type();
      if (op != "copy") type.layout = ir::ParseLayout(layout_);
      node->output(i)->set_type(type);
    }
    for (size_t i : wanted) {
      graph->AddOutput(node->output(i), fmt::format("y{}", i));
    }
    const test::ChannelsLastCompiler compiler("nvidia-h200");
    passes::PassContext context(compiler, {});
    EXPECT_TRUE(passes::GenerateKernels(*graph, context));
    ir::Verify(*graph);
    return graph;
  }

  // Returns a normalisation with given statistics, ReLU, a max-pool, values
  // gathered at its maxima, and the gradient of all this except the statistics,
  // as FusePool creates it. Inputs are {y, scale, shift, dp}, outputs {p, y at
  // the maxima, dy}.
  std::unique_ptr<Graph> Normalised(const Pool& pool, bool eager) const {
    auto graph = std::make_unique<Graph>();
    ir::Builder b(*graph);
    const auto laid_out = [&](ir::Value* value) {
      TensorType type = value->type();
      type.layout = ir::ParseLayout(layout_);
      value->set_type(type);
      return value;
    };
    const TensorType image = Type(pool.image, GetParam());
    const auto add_input = [&](const TensorType& type, const char* name) {
      return graph->AddInput(type, ir::InputRole::kData, name);
    };
    ir::Value* y = add_input(image, "y");
    ir::Value* scale = add_input({DType::kF32, {pool.image[1]}, {}}, "scale");
    ir::Value* shift = add_input({DType::kF32, {}, {}}, "shift");
    const auto normalise = [&] {
      ir::Value* wide = b.Cast(y, DType::kF32);
      return b.Plus(b.Times(wide, b.BroadcastAlong(scale, wide->type(), 1)),
                    laid_out(b.Broadcast(shift, pool.image, {})));
    };
    ir::Value* z = b.Cast(b.Relu(normalise()), GetParam());
    ir::Node* maxima = b.Add("max_pool", {z}, Attrs(pool));
    for (size_t i = 0; i < 2; ++i) laid_out(maxima->output(i));
    graph->AddOutput(maxima->output(), "p");
    graph->AddOutput(laid_out(b.Add("max_pool_gather", {y, maxima->output(1)},
                                    maxima->attrs())
                                  ->output()),
                     "ym");
    ir::Attrs attrs = Attrs(pool);
    attrs.Set("input_shape", pool.image);
    ir::Value* dp = add_input(maxima->output()->type(), "dp");
    ir::Value* dz =
        laid_out(b.Add("max_pool_grad", {b.Neg(dp), maxima->output(1)}, attrs)
                     ->output());
    ir::Value* g = b.Cast(dz, DType::kF32);
    ir::Value* n = normalise();
    ir::Value* masked =
        b.Select(b.Compare("gt", n, b.Zeros(n->type())), g, b.Zeros(g->type()));
    graph->AddOutput(
        b.Cast(
            b.Plus(b.Times(masked, b.BroadcastAlong(scale, g->type(), 1)), n),
            GetParam()),
        "dy");
    passes::PassOptions options;
    options.eager_rounding = eager;
    const test::ChannelsLastCompiler compiler("nvidia-h200");
    passes::PassContext context(compiler, options);
    EXPECT_TRUE(passes::FusePool(*graph, context));
    EXPECT_EQ(graph->nodes().size(), 2);
    ir::Verify(*graph);
    return graph;
  }

  // Compares the results with the interpreter, to within `relative`.
  void Check(const Graph& graph, const std::vector<Tensor>& inputs,
             double relative) {
    const auto expected = ir::Interpret(graph, inputs, ir::EvalMode::kTyped);
    for (const ir::Target& target : targets_) {
      const auto actual = test::RunWithKernels(graph, inputs, target);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(test::AllClose(actual[i], expected[i], relative, relative))
            << graph.nodes()[0]->output(i)->name() << " for " << target.name;
      }
    }
    for (const auto& node : graph.nodes()) {
      kernels_.push_back({LowerFusion(*node, targets_[0]).kernel});
    }
  }

  // Checks the text of the kernels that compile fastest.
  void CheckText(size_t most = 8) {
    const auto length = [](const CompiledKernel& kernel) {
      return Print(kernel.kernel).size();
    };
    std::stable_sort(
        kernels_.begin(), kernels_.end(),
        [&](const auto& a, const auto& b) { return length(a) < length(b); });
    kernels_.resize(std::min<size_t>(kernels_.size(), most));
    for (const std::string& problem :
         test::CompareWithInterpreter(kernels_, 1)) {
      ADD_FAILURE() << problem;
    }
  }

  // Returns the error of one rounding: kernels sum in f32, the interpreter in
  // f64.
  static double Rounding() {
    switch (GetParam()) {
      case DType::kF16:
        return 1e-3;
      case DType::kBF16:
        return 8e-3;
      default:
        return 1e-6;
    }
  }

  static ir::Attrs Attrs(const Pool& pool) {
    return {
        {"window", pool.window}, {"stride", pool.stride}, {"pad", pool.pad}};
  }

  std::string layout_ = "acdb";
  std::vector<ir::Target> targets_ = {ir::FindTarget("nvidia-h200"),
                                      ir::FindTarget("cpu-avx2")};
  std::vector<CompiledKernel> kernels_;
};

TEST_P(PoolKernelTest, MaximaAndTheirGradients) {
  for (const Pool& pool : Pools()) {
    for (const char* layout : {"acdb", ""}) {
      layout_ = layout;
      // Few values, so that many are equal. Some are NaN.
      Tensor x = test::RandomTensor({DType::kI32, pool.image, {}},
                                    pool.image[2], 0, 5);
      x.type = Type(pool.image, GetParam());
      for (size_t i = 0; i < x.data.size(); i += 11) {
        x.data[i] = i % 3 == 0 ? kNan : -kInfinity;
      }
      const auto forward = Generated("max_pool", {x.type}, Attrs(pool), {0, 1});
      Check(*forward, {x}, 0);
      const auto maxima = ir::Interpret(*forward, {{x}}, ir::EvalMode::kTyped);
      ir::Attrs attrs = Attrs(pool);
      attrs.Set("input_shape", pool.image);
      const Tensor dy = test::RandomTensor(maxima[0].type, 3);
      Check(*Generated("max_pool_grad", {dy.type, maxima[1].type}, attrs),
            {dy, maxima[1]}, Rounding());
    }
  }
  CheckText();
}

// 17 rows of windows: the last thread of a column has only one.
TEST_P(PoolKernelTest, WindowsOfAColumnShareRows) {
  const Pool pool{{1, 256, 33, 16}, {3, 3}, {2, 2}, {1, 1}};
  targets_.resize(1);
  targets_[0].threads = 1;  // multiprocessors, so that tasks suffice
  Tensor x = test::RandomTensor({DType::kI32, pool.image, {}}, 1, -1, 2);
  x.type = Type(pool.image, GetParam());
  for (size_t i = 0; i < x.data.size(); i += 7) {
    x.data[i] = i % 2 == 0 ? kNan : i % 3 == 0 ? -0.0 : -kInfinity;
  }
  Check(*Generated("max_pool", {x.type}, Attrs(pool), {0, 1}), {x}, 0);
  for (const bool eager : {false, true}) {
    const auto graph = Normalised(pool, eager);
    const Tensor dp = test::RandomTensor(
        {DType::kI32, graph->input(3)->type().shape, {}}, 2, -2, 3);
    Check(*graph,
          {x, test::RandomTensor(graph->input(1)->type(), 3),
           Tensor{graph->input(2)->type(), {1}},
           Tensor{graph->input(3)->type(), dp.data}},
          0);
  }
  // In the kernel without gathers: not 9 loads a window.
  const Kernel& kernel = kernels_[0].kernel;
  std::vector<std::pair<int, int>> loads_and_stores;
  for (const Phase& phase : kernel.phases) {
    std::pair<int, int> counts;
    VisitStatements(phase.body, [&](const Stmt& stmt) {
      counts.first += stmt.kind == StmtKind::kLoad ? 1 : 0;
      counts.second += stmt.kind == StmtKind::kStore ? 1 : 0;
    });
    loads_and_stores.push_back(counts);
  }
  EXPECT_EQ(*std::max_element(loads_and_stores.begin(), loads_and_stores.end()),
            std::pair(15, 4));
  CheckText(1);
}

TEST_P(PoolKernelTest, MeansAndTheirGradients) {
  for (const Pool& pool : Pools()) {
    for (const bool include_pad : {true, false}) {
      ir::Attrs attrs = Attrs(pool);
      attrs.Set("count_include_pad", include_pad);
      const Tensor x =
          test::RandomTensor(Type(pool.image, GetParam()), pool.image[3]);
      const auto forward = Generated("avg_pool", {x.type}, attrs);
      Check(*forward, {x}, Rounding());
      attrs.Set("input_shape", pool.image);
      const Tensor dy = test::RandomTensor(forward->outputs()[0].value->type(),
                                           pool.image[1]);
      Check(*Generated("avg_pool_grad", {dy.type}, attrs), {dy}, Rounding());
    }
  }
  CheckText();
}

// One filter per channel: convolution with and without bias, data gradient and
// weight gradient. The filters' channels are fastest, or not.
TEST_P(PoolKernelTest, DepthwiseConvolutions) {
  for (const Pool& pool : Pools()) {
    const int64_t channels = pool.image[1];
    ir::Shape pooled = pool.image;
    for (size_t i = 0; i < 2; ++i) {
      pooled[2 + i] = (pool.image[2 + i] + 2 * pool.pad[i] - pool.window[i]) /
                          pool.stride[i] +
                      1;
    }
    for (const char* filter : {"cdba", ""}) {
      const TensorType weight{GetParam(),
                              {channels, 1, pool.window[0], pool.window[1]},
                              ir::ParseLayout(filter)};
      const Tensor x = test::RandomTensor(Type(pool.image, GetParam()), 1);
      const Tensor dy = test::RandomTensor(Type(pooled, GetParam()), 2);
      const Tensor w = test::RandomTensor(weight, 3);
      const Tensor bias = test::RandomTensor({GetParam(), {channels}, {}}, 4);
      const auto check = [&](const char* op, const std::vector<Tensor>& inputs,
                             ir::Attrs attrs, const TensorType& result) {
        attrs.Set("stride", pool.stride);
        attrs.Set("pad", pool.pad);
        attrs.Set("groups", channels);
        Graph graph;
        std::vector<ir::Value*> operands;
        for (const Tensor& input : inputs) {
          operands.push_back(
              graph.AddInput(input.type, ir::InputRole::kData, "x"));
        }
        ir::Node* node = graph.AddNode(op, operands, attrs);
        node->output()->set_type(result);
        graph.AddOutput(node->output(), "y");
        const passes::OutlineRequest request{.members = {node},
                                             .separate_operands = true};
        passes::Outline(graph, {&request, 1});
        // Sums of up to 243 products.
        Check(graph, inputs, 16 * Rounding());
      };
      check("conv2d", {x, w}, {}, dy.type);
      check("conv2d", {x, w, bias}, {}, dy.type);
      check("conv2d_grad_input", {dy, w}, {{"input_shape", pool.image}},
            x.type);
      check("conv2d_grad_weight", {x, dy}, {{"weight_shape", weight.shape}},
            weight);
    }
  }
  CheckText();
}

TEST_P(PoolKernelTest, StoresWhatIsRead) {
  const Tensor x = test::RandomTensor(Type({2, 8, 6, 6}, GetParam()), 1);
  const Pool pool{{}, {2, 2}, {2, 2}, {0, 0}};
  for (const size_t wanted : {0, 1}) {
    Check(*Generated("max_pool", {x.type}, Attrs(pool), {wanted}), {x}, 0);
    EXPECT_EQ(kernels_.back().kernel.buffers.size(), 2);
  }
}

// Uses numbers that are exact in all dtypes. Many are equal.
TEST_P(PoolKernelTest, ComputesFusedOps) {
  for (const Pool& pool : Pools()) {
    for (const bool eager : {false, true}) {
      const auto graph = Normalised(pool, eager);
      std::vector<Tensor> inputs;
      for (const ir::Input& input : graph->inputs()) {
        inputs.push_back(test::RandomTensor(
            {DType::kI32, input.value->type().shape, {}},
            inputs.size() + static_cast<uint64_t>(pool.image[3]), -2, 3));
        inputs.back().type = input.value->type();
      }
      inputs[0].data[0] = kNan;
      Check(*graph, inputs, 0);
    }
  }
  CheckText(4);
}

// Rounds every node like the interpreter. Windows do not overlap, so there are
// no sums.
TEST_P(PoolKernelTest, RoundsFusedOps) {
  const auto graph =
      Normalised({{2, 16, 8, 8}, {2, 2}, {2, 2}, {0, 0}}, /*eager=*/true);
  std::vector<Tensor> inputs;
  for (const ir::Input& input : graph->inputs()) {
    inputs.push_back(test::RandomTensor(input.value->type(), inputs.size()));
  }
  Check(*graph, inputs, 0);
}

// Values that are equal only after rounding to 16 bits: pooling must compare
// rounded values.
TEST_P(PoolKernelTest, ComparesRoundedValues) {
  const Pool pool{{1, 8, 4, 4}, {4, 4}, {4, 4}, {0, 0}};
  const auto graph = Normalised(pool, false);
  std::vector<Tensor> inputs;
  for (const ir::Input& input : graph->inputs()) {
    inputs.push_back(test::RandomTensor(input.value->type(), 1, 1, 1.01));
  }
  for (double& shift : inputs[2].data) shift = 64;
  Check(*graph, inputs, Rounding());
}

// Reads and writes images and pooled tensors once, even if windows overlap.
TEST_P(PoolKernelTest, MovesEachTensorOnce) {
  const Pool pool{{64, 64, 16, 16}, {2, 2}, {2, 2}, {0, 0}};
  const auto graph = Normalised(pool, false);
  const int64_t image = graph->input(0)->type().num_bytes();
  const int64_t vectors = 4 * (64 + 1);
  for (size_t i = 0; i < 2; ++i) {
    const Kernel kernel =
        LowerFusion(*graph->nodes()[i], ir::FindTarget("nvidia-h200")).kernel;
    const int64_t positions = 64 * 64 * 8 * 8;
    EXPECT_EQ(inspect::TrafficBytes(kernel),
              i == 0 ? image + image / 4 * 2 + positions + vectors
                     : 2 * image + image / 4 + positions + vectors);
    EXPECT_EQ(kernel.phases.size(), 1);
  }
}

// There is only one phase if windows neither overlap nor leave the image.
TEST_P(PoolKernelTest, BordersAreFurtherPhases) {
  const auto phases = [&](const Pool& pool) {
    const auto graph = Generated("max_pool", {Type(pool.image, GetParam())},
                                 Attrs(pool), {0, 1});
    return LowerFusion(*graph->nodes()[0], ir::FindTarget("nvidia-h200"))
        .kernel.phases.size();
  };
  EXPECT_EQ(phases({{4, 64, 8, 8}, {2, 2}, {2, 2}, {0, 0}}), 1);
  EXPECT_EQ(phases({{4, 64, 8, 8}, {3, 3}, {2, 2}, {1, 1}}), 4);
}

TEST_P(PoolKernelTest, CopiesIntoOtherLayouts) {
  for (const auto& [from, to] :
       {std::pair{"acdb", ""}, {"", "acdb"}, {"acdb", "bacd"}}) {
    for (const DType dtype : {GetParam(), DType::kF32}) {
      const Tensor x = test::RandomTensor(
          {GetParam(), {3, 20, 5, 7}, ir::ParseLayout(from)}, 2);
      Check(*Generated("copy", {x.type},
                       {{"layout", std::string(to)},
                        {"result_dtype", std::string(DTypeName(dtype))}}),
            {x}, 0);
    }
  }
  CheckText();
}

INSTANTIATE_TEST_SUITE_P(DTypes, PoolKernelTest,
                         ::testing::Values(DType::kF32, DType::kF16,
                                           DType::kBF16),
                         [](const auto& param) {
                           return std::string(DTypeName(param.param));
                         });

}  // namespace
}  // namespace fusor::codegen
