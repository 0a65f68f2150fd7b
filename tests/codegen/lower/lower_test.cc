#include "codegen/lower/lower.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ir/builder.h"
#include "ir/io/printer.h"
#include "ir/verifier.h"
#include "passes/passes.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/kernel_runner.h"
#include "tests/testing/numeric.h"
#include "tests/testing/random_graph.h"

namespace fusor::codegen {
namespace {

using test::RandomGraphOptions;

// Fuses a copy of the graph and compares its kernels with the interpreter.
// Returns the number of fusions.
int ExpectKernelsAgree(const ir::Graph& graph,
                       const passes::PassOptions& options, uint64_t seed,
                       int threads = 2, double tolerance = 2e-5) {
  const test::BareTarget queries;
  const auto fused = graph.Clone();
  passes::PassContext context(queries, options);
  passes::DropStopGradient(*fused, context);
  passes::Fuse(*fused, context);
  ir::Verify(*fused);
  const auto inputs = test::RandomInputs(graph, seed);
  const auto expected = ir::Interpret(graph, inputs, ir::EvalMode::kTyped);
  for (const ir::Target& target :
       {queries.target(), ir::FindTarget("nvidia-h200")}) {
    const auto actual =
        test::RunWithKernels(*fused, inputs, ir::WithThreads(target, threads));
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(test::AllClose(actual[i], expected[i], tolerance, tolerance))
          << target.name << " output " << i << "\n"
          << ir::Print(graph) << "\n"
          << ir::Print(*fused);
    }
  }
  int fusions = 0;
  for (const auto& node : fused->nodes()) {
    fusions += node->body() != nullptr ? 1 : 0;
  }
  return fusions;
}

TEST(LowerFusion, RandomGraphsAgreeWithTheInterpreter) {
  RandomGraphOptions options;
  options.nodes = 25;
  options.ops = test::kElementwise | test::kBroadcast | test::kReduce;
  for (uint64_t seed = 0; seed < 150 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    ExpectKernelsAgree(*test::RandomGraph(seed, options), {}, seed);
  }
}

TEST(LowerFusion, RandomGraphsWithMovementAndLayoutsAgree) {
  RandomGraphOptions options;
  options.nodes = 25;
  options.layouts = true;
  options.ops =
      test::kElementwise | test::kBroadcast | test::kReduce | test::kMovement;
  for (uint64_t seed = 0; seed < 150 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    ExpectKernelsAgree(*test::RandomGraph(seed, options), {}, seed);
  }
}

TEST(LowerFusion, RandomGraphsWithAccessByIndexAgree) {
  RandomGraphOptions options;
  options.nodes = 25;
  options.layouts = true;
  options.ops |= test::kMisc;
  options.dtypes = {ir::DType::kF32, ir::DType::kI32};
  for (uint64_t seed = 0; seed < 100 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    ExpectKernelsAgree(*test::RandomGraph(seed, options),
                       {.fusion = seed % 3 != 0}, seed);
  }
}

TEST(LowerFusion, UnfusedRandomGraphsAgree) {
  RandomGraphOptions options;
  options.nodes = 25;
  options.layouts = true;
  for (uint64_t seed = 0; seed < 60 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    ExpectKernelsAgree(*test::RandomGraph(seed, options), {.fusion = false},
                       seed);
  }
}

// Returns a batch normalisation of x f32[8,32,6,5] in the layout, with ReLU and
// a residual.
std::unique_ptr<ir::Graph> BatchNormGraph(const std::string& residual,
                                          const std::string& layout,
                                          bool backward) {
  auto graph = std::make_unique<ir::Graph>("bn");
  ir::Builder b(*graph);
  const ir::TensorType x{
      ir::DType::kF32, {8, 32, 6, 5}, ir::ParseLayout(layout)};
  const ir::TensorType c{ir::DType::kF32, {32}, {}};
  const auto input = [&](const ir::TensorType& type, const char* name) {
    return graph->AddInput(type, ir::InputRole::kData, name);
  };
  std::vector<ir::Value*> operands;
  if (backward) operands.push_back(input(x, "dy"));
  operands.push_back(input(x, "x"));
  const auto vectors = [&](bool statistics) {
    for (const char* name : {"gamma", "beta"}) {
      operands.push_back(input(c, name));
    }
    if (!statistics) return;
    operands.push_back(input(c, "mean"));
    operands.push_back(b.Plus(b.Abs(input(c, "variance")), 0.5));
  };
  vectors(backward);
  if (residual == "norm") {
    operands.push_back(input(x, "x2"));
    vectors(backward);
  } else if (residual == "add" && !backward) {
    operands.push_back(input(x, "r"));
  }
  if (backward && residual != "none") {
    operands.push_back(b.Compare("gt", input(x, "z"), 0.0));
  }
  ir::Node* node = b.Add(backward ? "batch_norm_grad" : "batch_norm_train",
                         operands, {{"relu", true}, {"residual", residual}});
  for (size_t i = 0; i < node->num_outputs(); ++i) {
    graph->AddOutput(node->output(i), "y" + std::to_string(i));
  }
  return graph;
}

class LoweredBatchNorm : public ::testing::TestWithParam<
                             std::tuple<const char*, const char*, bool, int>> {
};

TEST_P(LoweredBatchNorm, AgreesWithTheInterpreterInOneKernel) {
  const auto& [residual, layout, backward, threads] = GetParam();
  const auto graph = BatchNormGraph(residual, layout, backward);
  const test::BareTarget queries;
  const auto lowered = graph->Clone();
  passes::PassContext context(queries, {});
  ASSERT_TRUE(passes::LowerBatchNorm(*lowered, context));
  ir::Verify(*lowered);
  passes::Fuse(*lowered, context);
  ir::Verify(*lowered);
  const auto inputs = test::RandomInputs(*graph, 1);
  const auto expected = ir::Interpret(*graph, inputs, ir::EvalMode::kTyped);
  std::vector<ir::Target> targets{queries.target()};
  // GPU libraries have no blocked layouts, but generated kernels support them.
  targets.push_back(ir::FindTarget("nvidia-h200"));
  for (const ir::Target& target : targets) {
    const auto actual = test::RunWithKernels(*lowered, inputs,
                                             ir::WithThreads(target, threads));
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(test::AllClose(actual[i], expected[i], 2e-5, 2e-5))
          << target.name << " output " << i << "\n"
          << ir::Print(*lowered);
    }
  }
  int fusions = 0;
  for (const auto& node : lowered->nodes()) {
    fusions += node->body() != nullptr ? 1 : 0;
  }
  EXPECT_EQ(fusions, 1) << ir::Print(*lowered);
}

INSTANTIATE_TEST_SUITE_P(
    All, LoweredBatchNorm,
    ::testing::Combine(::testing::Values("none", "add", "norm"),
                       ::testing::Values("", "acdb", "aBcd16b"),
                       ::testing::Bool(), ::testing::Values(1, 64)));

// The residual's gradient equals the upstream gradient, so the kernel must not
// store it.
TEST(LowerFusion, ASeparateNormGradientStoresNoCopyOfAnOperand) {
  const auto graph = test::ParseOrDie(R"(graph g {
  %dy = data : f32[4,3,2,2]
  %x = data : f32[4,3,2,2]
  %gamma = data : f32[3]
  %beta = data : f32[3]
  %mean = data : f32[3]
  %variance = weight : f32[3]
  %dx, %dgamma, %dbeta, %dr = batch_norm_grad(%dy, %x, %gamma, %beta, %mean, %variance) {epsilon=9.0, residual="add"} : f32[4,3,2,2], f32[3], f32[3], f32[4,3,2,2]
  return %dx as "dx", %dr as "dr"
})");
  const test::BareTarget queries;
  passes::PassContext context(
      queries, {.norm_lowering = passes::NormLowering::kSeparate});
  const auto lowered = graph->Clone();
  ASSERT_TRUE(passes::LowerBatchNorm(*lowered, context));
  ir::Verify(*lowered);
  EXPECT_EQ(lowered->outputs()[1].value, lowered->FindInput("dy"));
  const auto inputs = test::RandomInputs(*graph, 1);
  const auto expected = ir::Interpret(*graph, inputs, ir::EvalMode::kTyped);
  const auto actual = test::RunWithKernels(*lowered, inputs, queries.target());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(test::AllClose(actual[i], expected[i], 2e-5, 2e-5));
  }
}

TEST(LowerFusion, ThirtyChainedElementwiseOpsAreOneKernel) {
  ir::Graph graph;
  ir::Builder b(graph);
  ir::Value* x = graph.AddInput({ir::DType::kF32, {33, 17}, {}},
                                ir::InputRole::kData, "x");
  for (int i = 0; i < 10; ++i) x = b.Tanh(b.Plus(b.Times(x, 1.5), 0.25));
  graph.AddOutput(x, "y");
  EXPECT_EQ(ExpectKernelsAgree(graph, {}, 1), 1);
}

TEST(LowerFusion, SoftmaxIsOneKernel) {
  ir::Graph graph;
  ir::Builder b(graph);
  ir::Value* x =
      graph.AddInput({ir::DType::kF32, {5, 37}, {}}, ir::InputRole::kData, "x");
  graph.AddOutput(b.Softmax(x), "y");
  EXPECT_EQ(ExpectKernelsAgree(graph, {}, 1), 1);
}

TEST(LowerFusion, PartsOfWholeTilesAreReadAndJoined) {
  const auto graph = test::ParseOrDie(R"(graph parts {
  %x = data : f32[2,48,3,5]{aBcd16b}
  %y = data : f32[2,16,3,5]{acdb}
  %part = slice(%x) {limit=[2,48,3,5], start=[0,16,0,0], stride=[1,1,1,1]} : f32[2,32,3,5]{aBcd16b}
  %z = neg(%part) : f32[2,32,3,5]{aBcd16b}
  %joined = concat(%y, %x) {dim=1} : f32[2,64,3,5]{aBcd16b}
  return %z as "z", %joined as "joined"
})");
  EXPECT_EQ(ExpectKernelsAgree(*graph, {}, 1), 2);
}

// Returns the number of kernels of the graph `text`.
int KernelsOf(std::string_view text) {
  return ExpectKernelsAgree(*test::ParseOrDie(text), {}, 1);
}

// Patch merging adds what it pads.
TEST(LowerFusion, ASumOfPadsIsOneKernel) {
  EXPECT_EQ(KernelsOf(R"(graph pads {
  %x = data : f32[2,3,4,21]
  %y = data : f32[2,4,1,21]
  %z = data : f32[2,6,5,21]
  %p = pad(%x) {high=[0,1,0,0], interior=[0,0,0,0], low=[0,2,1,0], value=0.5} : f32[2,6,5,21]
  %q = pad(%y) {high=[0,2,1,0], interior=[0,0,0,0], low=[0,0,3,0]} : f32[2,6,5,21]
  %s = add(%p, %q) : f32[2,6,5,21]
  %r = mul(%s, %z) : f32[2,6,5,21]
  return %r as "r"
})"),
            1);
}

// One kernel computes the operand of the pad, pads it, takes a slice and
// reduces the slice.
TEST(LowerFusion, APadIsPartOfAReduction) {
  EXPECT_EQ(KernelsOf(R"(graph pad {
  %x = data : f32[9,7,5]
  %e = exp(%x) : f32[9,7,5]
  %p = pad(%e) {high=[2,3,0], interior=[0,0,0], low=[1,0,0], value=-1.0} : f32[12,10,5]
  %s = slice(%p) {limit=[12,10,5], start=[0,1,0], stride=[2,3,1]} : f32[6,3,5]
  %r = reduce(%s) {dims=[0,2], kind="sum"} : f32[3]
  return %r as "r"
})"),
            1);
}

TEST(LowerFusion, IntegersAndBoolsArePadded) {
  EXPECT_EQ(KernelsOf(R"(graph pad {
  %x = data : i32[3,20]
  %b = data : bool[2,20]
  %p = pad(%x) {high=[1,0], interior=[0,0], low=[0,0], value=7.0} : i32[4,20]
  %q = pad(%b) {high=[0,0], interior=[0,0], low=[2,0], value=1.0} : bool[4,20]
  %n = neg(%p) : i32[4,20]
  %r = select(%q, %p, %n) : i32[4,20]
  return %r as "r"
})"),
            1);
}

// The gradients of queries, keys and values, whose sum is that of a bias.
TEST(LowerFusion, AConcatenationIsPartOfItsReader) {
  EXPECT_EQ(KernelsOf(R"(graph qkv {
  %q = data : f32[4,2,5,8]
  %k = data : f32[4,2,8,5]
  %v = data : f32[4,2,5,8]
  %scaled = mul(%q, %q) : f32[4,2,5,8]
  %qr = reshape(%scaled) {shape=[1,4,2,5,8]} : f32[1,4,2,5,8]
  %kt = transpose(%k) {permutation=[0,1,3,2]} : f32[4,2,5,8]
  %kr = reshape(%kt) {shape=[1,4,2,5,8]} : f32[1,4,2,5,8]
  %vr = reshape(%v) {shape=[1,4,2,5,8]} : f32[1,4,2,5,8]
  %c = concat(%qr, %kr, %vr) {dim=0} : f32[3,4,2,5,8]
  %t = transpose(%c) {permutation=[1,3,0,2,4]} : f32[4,5,3,2,8]
  %r = reduce(%t) {dims=[0,1], kind="sum"} : f32[3,2,8]
  return %t as "t", %r as "r"
})"),
            1);
}

// Two concatenations that change operands at different places, a pad of one,
// and a slice that reads only two operands of the other.
TEST(LowerFusion, ConcatenationsSplitTheLoops) {
  EXPECT_EQ(KernelsOf(R"(graph concats {
  %a = data : f32[2,3,20]
  %b = data : f32[4,3,20]
  %c = data : f32[6,1,20]
  %d = data : f32[6,2,20]
  %e = data : f32[6,3,20]
  %ab = concat(%a, %b) {dim=0} : f32[6,3,20]
  %abp = pad(%ab) {high=[0,1,0], interior=[0,0,0], low=[0,0,0]} : f32[6,4,20]
  %cde = concat(%c, %d, %e) {dim=1} : f32[6,6,20]
  %de = slice(%cde) {limit=[6,6,20], start=[0,2,0], stride=[1,1,1]} : f32[6,4,20]
  %s = add(%abp, %de) : f32[6,4,20]
  return %s as "s"
})"),
            1);
}

// A vector of elements would come from two operands, or a large part of what is
// computed would not be used.
TEST(LowerFusion, SomePadsAndConcatenationsAreKernelsOfTheirOwn) {
  EXPECT_EQ(KernelsOf(R"(graph vectors {
  %a = data : f32[6,8]
  %b = data : f32[6,12]
  %c = concat(%a, %b) {dim=1} : f32[6,20]
  %r = relu(%c) : f32[6,20]
  return %r as "r"
})"),
            2);
  EXPECT_EQ(KernelsOf(R"(graph mostly {
  %a = data : f32[2,20]
  %e = exp(%a) : f32[2,20]
  %p = pad(%e) {high=[4,0], interior=[0,0], low=[0,0]} : f32[6,20]
  return %p as "p"
})"),
            2);
  EXPECT_EQ(KernelsOf(R"(graph interior {
  %a = data : f32[3,20]
  %p = pad(%a) {high=[1,0], interior=[1,0], low=[0,0]} : f32[6,20]
  %r = relu(%p) : f32[6,20]
  return %r as "r"
})"),
            2);
}

TEST(LowerFusion, LayerNormIsOneKernel) {
  ir::Graph graph;
  ir::Builder b(graph);
  const auto input = [&](ir::Shape shape) {
    return graph.AddInput({ir::DType::kF32, std::move(shape), {}},
                          ir::InputRole::kData, "x");
  };
  graph.AddOutput(b.LayerNorm(input({6, 50}), input({50}), input({50}), 1e-5),
                  "y");
  EXPECT_EQ(ExpectKernelsAgree(graph, {}, 1), 1);
}

// A maximum is stored as f16. Unrounded, none of its operands equals it, and
// the gradient would be lost.
TEST(LowerFusion, ComparesRoundedValuesWithAStoredMaximum) {
  const auto graph = test::ParseOrDie(R"(graph maximum {
  %x = data : f32[4,64]
  %max = fusion(%x) {rounding="fast"} : f16[4] graph fusion {
    %x = data : f32[4,64]
    %half = cast(%x) {dtype="f16"} : f16[4,64]
    %max = reduce(%half) {dims=[1], kind="max"} : f16[4]
    return %max as "max"
  }
  %hit = fusion(%x, %max) {rounding="fast"} : bool[4,64] graph fusion {
    %x = data : f32[4,64]
    %max = data : f16[4]
    %half = cast(%x) {dtype="f16"} : f16[4,64]
    %all = broadcast(%max) {dims=[0], shape=[4,64]} : f16[4,64]
    %hit = compare(%half, %all) {direction="eq"} : bool[4,64]
    return %hit as "hit"
  }
  return %hit as "hit"
})");
  const auto inputs = test::RandomInputs(*graph, 1);
  const auto expected = ir::Interpret(*graph, inputs, ir::EvalMode::kTyped);
  EXPECT_GE(std::count(expected[0].data.begin(), expected[0].data.end(), 1), 4);
  for (const ir::Target& target :
       {test::BareTarget().target(), ir::FindTarget("nvidia-h200")}) {
    EXPECT_EQ(test::RunWithKernels(*graph, inputs, target)[0].data,
              expected[0].data)
        << target.name;
  }
}

// Reductions over a single element fold nothing, but the second sum still needs
// the first.
TEST(LowerFusion, SumsOfSingleElementsFollowEachOther) {
  ir::Graph graph;
  ir::Builder b(graph);
  ir::Value* x = graph.AddInput({ir::DType::kF32, {1, 24, 1, 1}, {}},
                                ir::InputRole::kData, "x");
  ir::Value* mean = b.BroadcastAlong(b.ReduceMean(x, {0, 2, 3}), x->type(), 1);
  ir::Value* centred = b.Minus(x, b.Times(mean, 0.5));
  ir::Value* square = b.ReduceSum(b.Times(centred, centred), {0, 2, 3});
  graph.AddOutput(square, "square");
  graph.AddOutput(b.Times(centred, b.BroadcastAlong(square, x->type(), 1)),
                  "y");
  EXPECT_EQ(ExpectKernelsAgree(graph, {}, 1), 1);
}

TEST(LowerFusion, SplitsAReductionThatHasTooFewTasks) {
  ir::Graph graph;
  ir::Builder b(graph);
  ir::Value* x = graph.AddInput({ir::DType::kF32, {64, 16, 8, 8}, {}},
                                ir::InputRole::kData, "x");
  graph.AddOutput(b.ReduceSum(x, {0, 1, 2, 3}), "y");
  const test::BareTarget queries;
  passes::PassContext context(queries, {});
  passes::Fuse(graph, context);
  const LoweredKernel lowered =
      LowerFusion(*graph.nodes()[0], ir::WithThreads(queries.target(), 4));
  EXPECT_EQ(lowered.kernel.phases.size(), 2u) << Print(lowered.kernel);
  EXPECT_GE(NumTasks(lowered.kernel, lowered.kernel.phases[0]), 16);
}

// Returns the kernel that sums the rows of a matrix, for two threads.
Kernel LowerSumOfRows(ir::DType dtype, int64_t rows, int64_t columns) {
  ir::Graph graph;
  ir::Builder b(graph);
  ir::Value* x =
      graph.AddInput({dtype, {rows, columns}, {}}, ir::InputRole::kData, "x");
  graph.AddOutput(b.ReduceSum(x, {0}), "y");
  const test::BareTarget queries;
  passes::PassContext context(queries, {});
  passes::Fuse(graph, context);
  return LowerFusion(*graph.nodes()[0], ir::WithThreads(queries.target(), 2))
      .kernel;
}

// A task would use one vector of each row, and leave the rest of its cache
// lines to another task. With few elements, all stay in a cache.
TEST(LowerFusion, SplitsAReductionOverRowsOfSeveralVectors) {
  const auto chunks = [](int64_t rows, int64_t columns) -> int64_t {
    for (const Axis& axis :
         LowerSumOfRows(ir::DType::kF32, rows, columns).axes) {
      if (axis.name.ends_with("_chunk")) return axis.extent;
    }
    return 1;
  };
  EXPECT_EQ(chunks(int64_t{1} << 14, 80), 32);
  EXPECT_EQ(chunks(1024, 80), 1);
}

// The target's vectors have 16 lanes. Four of them hold four cache lines of f32
// and two of bf16.
TEST(LowerFusion, SumsSeveralVectorsOfEachRowPerTask) {
  const auto lanes = [](ir::DType dtype, int64_t rows, int64_t columns) {
    return LowerSumOfRows(dtype, rows, columns).lanes;
  };
  EXPECT_EQ(lanes(ir::DType::kF32, 1 << 14, 128), 64);
  EXPECT_EQ(lanes(ir::DType::kF32, 1 << 14, 96), 32);
  EXPECT_EQ(lanes(ir::DType::kBF16, 1 << 14, 128), 64);
  EXPECT_EQ(lanes(ir::DType::kBF16, 1 << 14, 96), 32);
  // A row that is no multiple of vectors has a masked one in any case.
  EXPECT_EQ(lanes(ir::DType::kF32, 1 << 14, 72), 64);
  EXPECT_EQ(lanes(ir::DType::kBF16, 1 << 16, 24), 32);
  // Too few tasks for the threads.
  EXPECT_EQ(lanes(ir::DType::kF32, 512, 96), 16);
}

// Channels come in blocks of 16, because the result does: the tasks of a chunk,
// an image, share the rows of x, so they follow each other.
TEST(LowerFusion, TasksOfAChunkFollowEachOtherIfBlocksDivideItsRows) {
  const auto graph = test::ParseOrDie(R"(graph mixed {
  %x = data : f32[2,64,64,64]{acdb}
  %s = reduce(%x) {dims=[0,2,3], kind="sum"} : f32[64]
  %b = broadcast(%s) {dims=[1], shape=[2,64,64,64]} : f32[2,64,64,64]{acdb}
  %m = mul(%x, %b) : f32[2,64,64,64]{acdb}
  %y = copy(%m) {layout="aBcd16b"} : f32[2,64,64,64]{aBcd16b}
  return %y as "y"
})");
  EXPECT_EQ(ExpectKernelsAgree(*graph, {}, 1, 2, 1e-3), 1);
  const test::BareTarget queries;
  passes::PassContext context(queries, {});
  passes::Fuse(*graph, context);
  const Kernel kernel =
      LowerFusion(*graph->nodes()[0], ir::WithThreads(queries.target(), 2))
          .kernel;
  ASSERT_EQ(kernel.phases.size(), 3u) << Print(kernel);
  for (const size_t phase : {0, 2}) {
    const int slowest = kernel.phases[phase].grid.front();
    EXPECT_EQ(kernel.axes[slowest].name, "a_chunk");
  }
}

// One block per channel combines the chunks' partial sums, all sums in one
// loop. With one block for all lanes, there would be only one.
TEST(LowerFusion, ABlockOfAGpuCombinesTheChunksOfOneChannel) {
  ir::Graph graph;
  ir::Builder b(graph);
  ir::Value* x = graph.AddInput(
      {ir::DType::kF16, {256, 256, 56, 56}, ir::ParseLayout("acdb")},
      ir::InputRole::kData, "x");
  for (ir::Value* summed : {x, b.Times(x, x)}) {
    graph.AddOutput(b.ReduceSum(summed, {0, 2, 3}), "y");
  }
  const test::BareTarget queries;
  passes::PassContext context(queries, {});
  passes::Fuse(graph, context);
  const Kernel kernel =
      LowerFusion(*graph.nodes()[0], ir::FindTarget("nvidia-h200")).kernel;
  ASSERT_EQ(kernel.phases.size(), 2u) << Print(kernel);
  const Phase& combining = kernel.phases[1];
  EXPECT_EQ(NumTasks(kernel, combining), 256);
  int loops = 0;
  for (const Stmt& stmt : combining.body) {
    if (stmt.kind != StmtKind::kLoop) continue;
    ++loops;
    EXPECT_TRUE(kernel.axes[stmt.axis].vector);
    EXPECT_EQ(kernel.axes[stmt.axis].extent * NumRows(kernel, combining),
              NumTasks(kernel, kernel.phases[0]));
    for (const Stmt& load : stmt.body) {
      if (load.kind != StmtKind::kLoad) continue;
      for (const Index::Term& term : load.index.terms) {
        if (term.axis == stmt.axis) {
          EXPECT_EQ(term.coefficient, 1);
        }
      }
    }
  }
  EXPECT_EQ(loops, 1) << Print(kernel);
}

// 49 pixels have no divisor near the usual number of rows.
TEST(LowerFusion, ABlockOfAGpuHasSeveralWarpsWhateverTheImagesSize) {
  ir::Graph graph;
  ir::Builder b(graph);
  const ir::TensorType type{ir::DType::kF16, {256, 7, 7, 2048}, {}};
  ir::Value* x = graph.AddInput(type, ir::InputRole::kData, "x");
  ir::Value* y = graph.AddInput({ir::DType::kF16, {256, 2048}, {}},
                                ir::InputRole::kData, "y");
  ir::Value* both = b.Plus(x, b.Broadcast(y, type.shape, {0, 3}));
  graph.AddOutput(b.ReduceSum(both, {0, 1, 2}), "sum");
  const test::BareTarget queries;
  passes::PassContext context(queries, {});
  passes::Fuse(graph, context);
  const Kernel kernel =
      LowerFusion(*graph.nodes()[0], ir::FindTarget("nvidia-h200")).kernel;
  EXPECT_EQ(NumRows(kernel, kernel.phases[0]), 7) << Print(kernel);
}

// Where the axis before the fastest is short, another gives the rows.
// The slower of two summed axes has too few elements to occupy a GPU.
TEST(LowerFusion, AGpuSplitsTheSummedAxisThatGivesItEnoughBlocks) {
  ir::Graph graph;
  ir::Builder b(graph);
  const ir::TensorType type{ir::DType::kF16, {128, 112, 112, 32}, {}};
  ir::Value* x = graph.AddInput(type, ir::InputRole::kData, "x");
  ir::Value* y = graph.AddInput({ir::DType::kF16, {128, 32}, {}},
                                ir::InputRole::kData, "y");
  ir::Value* both = b.Times(x, b.Broadcast(y, type.shape, {0, 3}));
  graph.AddOutput(b.ReduceSum(both, {0, 1, 2}), "sum");
  const test::BareTarget queries;
  passes::PassContext context(queries, {});
  passes::Fuse(graph, context);
  const ir::Target target = ir::FindTarget("nvidia-h200");
  const Kernel kernel = LowerFusion(*graph.nodes()[0], target).kernel;
  EXPECT_GE(NumTasks(kernel, kernel.phases[0]), 2 * target.threads)
      << Print(kernel);
}

// Rows of 197 elements do not begin at multiples of 16 bytes.
TEST(LowerFusion, AThreadOfAGpuAccessesWhatItsRowsAreAlignedTo) {
  for (const auto& [extent, width] :
       {std::pair{192, 4}, std::pair{198, 2}, std::pair{197, 1}}) {
    const auto graph = test::ParseOrDie(fmt::format(R"(graph rows {{
      %x = data : f32[1024,{0}]
      %sum = reduce(%x) {{dims=[1], kind="sum"}} : f32[1024]
      %all = broadcast(%sum) {{dims=[0], shape=[1024,{0}]}} : f32[1024,{0}]
      %y = div(%x, %all) : f32[1024,{0}]
      return %y as "y"
    }})",
                                                    extent));
    const test::BareTarget queries;
    passes::PassContext context(queries, {});
    passes::Fuse(*graph, context);
    EXPECT_EQ(LowerFusion(*graph->nodes()[0], ir::FindTarget("nvidia-h200"))
                  .kernel.width,
              width);
  }
}

TEST(LowerFusion, ABlockOfAGpuTakesRowsFromALongAxis) {
  ir::Graph graph;
  ir::Builder b(graph);
  const ir::TensorType type{ir::DType::kF16, {4096, 2, 3, 8}, {}};
  ir::Value* swapped = graph.AddInput({ir::DType::kF16, {4096, 3, 2, 8}, {}},
                                      ir::InputRole::kData, "y");
  graph.AddOutput(b.Plus(graph.AddInput(type, ir::InputRole::kData, "x"),
                         b.Transpose(swapped, {0, 2, 1, 3})),
                  "sum");
  const test::BareTarget queries;
  passes::PassContext context(queries, {});
  passes::Fuse(graph, context);
  const ir::Target target = ir::FindTarget("nvidia-h200");
  const Kernel kernel = LowerFusion(*graph.nodes()[0], target).kernel;
  EXPECT_EQ(NumRows(kernel, kernel.phases[0]), 256) << Print(kernel);
}

// The second pass reads the sum that the first has stored, and not its
// operands.
TEST(LowerFusion, WhatAGpuHasStoredItDoesNotComputeAgain) {
  ir::Graph graph;
  ir::Builder b(graph);
  const ir::TensorType type{
      ir::DType::kF16, {256, 64, 28, 28}, ir::ParseLayout("acdb")};
  ir::Value* x = graph.AddInput(type, ir::InputRole::kData, "x");
  ir::Value* y = graph.AddInput(type, ir::InputRole::kData, "y");
  ir::Value* sum = b.Plus(x, y);
  ir::Value* mean = b.BroadcastAlong(b.ReduceMean(sum, {0, 2, 3}), type, 1);
  graph.AddOutput(sum, "sum");
  graph.AddOutput(b.Minus(sum, mean), "centred");
  const std::string name = sum->name();
  const test::BareTarget queries;
  passes::PassContext context(queries, {});
  passes::Fuse(graph, context);
  ASSERT_EQ(graph.nodes().size(), 1u);
  const Kernel kernel =
      LowerFusion(*graph.nodes()[0], ir::FindTarget("nvidia-h200")).kernel;
  ASSERT_EQ(kernel.phases.size(), 3u) << Print(kernel);
  const std::string text = Print(kernel);
  const std::string last = text.substr(text.rfind("phase"));
  EXPECT_NE(text.find(" = add r1, r2  // %" + name), std::string::npos) << text;
  EXPECT_EQ(last.find("load b0"), std::string::npos) << text;
  EXPECT_EQ(last.find("load b1"), std::string::npos) << text;
}

TEST(LowerFusion, UpdatesOfOneGroupAreOneLaunch) {
  ir::Graph graph;
  ir::Builder b(graph);
  ir::Value* lr = graph.AddInput({ir::DType::kF32, {}, {}},
                                 ir::InputRole::kHyperParameter, "lr");
  for (const ir::Shape& shape :
       {ir::Shape{7, 3}, ir::Shape{100}, ir::Shape{2, 5, 5}}) {
    const ir::TensorType type{ir::DType::kF32, shape, {}};
    ir::Value* p = graph.AddInput(type, ir::InputRole::kWeight, "p");
    ir::Value* m = graph.AddInput(type, ir::InputRole::kOptimizerState, "m");
    ir::Value* g = graph.AddInput(type, ir::InputRole::kData, "g");
    ir::Value* m2 = b.Plus(b.Times(m, 0.9), b.Plus(g, b.Times(p, 1e-4)));
    graph.AddOutput(b.Minus(p, b.Times(m2, lr)), p->name(), p->index());
    graph.AddOutput(m2, m->name(), m->index());
  }
  const auto inputs = test::RandomInputs(graph, 1);
  const auto expected = ir::Interpret(graph, inputs, ir::EvalMode::kTyped);
  const test::BareTarget queries;
  passes::PassContext context(queries, {});
  passes::Fuse(graph, context);
  EXPECT_TRUE(passes::FuseUpdates(graph, context));
  ir::Verify(graph);
  EXPECT_EQ(graph.nodes().size(), 1u) << ir::Print(graph);
  const auto actual = test::RunWithKernels(graph, inputs, queries.target());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(test::AllClose(actual[i], expected[i], 1e-6, 1e-6));
  }
  const LoweredKernel lowered =
      LowerFusion(*graph.nodes()[0], queries.target());
  // Each of three operands may be overwritten by either result.
  EXPECT_EQ(lowered.in_place.size(), 3u * 3u * 2u);
}

}  // namespace
}  // namespace fusor::codegen
