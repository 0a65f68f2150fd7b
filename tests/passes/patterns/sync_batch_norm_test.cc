// Synchronised batch normalisation: several ranks with shards of a batch must
// compute the same as one rank with the whole batch.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "ir/builder.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "models/model.h"
#include "passes/pipeline.h"
#include "runtime/initial_values.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/interpreted_ranks.h"
#include "tests/testing/numeric.h"
#include "tests/testing/run_pass.h"

namespace fusor::passes {
namespace {

using ir::DType;
using ir::InputRole;
using ir::Tensor;
using ir::Value;
using ::testing::HasSubstr;

constexpr int64_t kBatch = 8;  // over all ranks

PassOptions Ranks(int64_t ranks) {
  PassOptions options;
  options.world_size = static_cast<int>(ranks);
  return options;
}

struct Kind {
  std::string residual;
  bool relu;
};

// Returns a normalisation and its gradient. Outputs whose first dimension is
// the batch come first, then per-channel outputs.
std::unique_ptr<ir::Graph> Build(const Kind& kind, int64_t batch, int64_t ranks,
                                 DType dtype = DType::kF64) {
  auto graph = std::make_unique<ir::Graph>("norm");
  ir::Builder b(*graph);
  const auto data = [&](const char* name, ir::Shape shape) {
    return graph->AddInput({dtype, std::move(shape), {}}, InputRole::kData,
                           name);
  };
  const ir::Shape image{batch, 3, 5, 4};
  std::vector<Value*> operands{data("x", image), data("gamma", {3}),
                               data("beta", {3})};
  if (kind.residual != "none") operands.push_back(data("x2", image));
  if (kind.residual == "norm") {
    operands.push_back(data("gamma2", {3}));
    operands.push_back(data("beta2", {3}));
  }
  Value* dy = data("dy", image);
  ir::Node* train = b.Add(
      "batch_norm_train", operands,
      {{"relu", kind.relu}, {"residual", kind.residual}, {"ranks", ranks}});
  std::vector<Value*> d(train->num_outputs(), nullptr);
  d[0] = dy;
  const std::vector<Value*> gradients =
      ir::GetOp("batch_norm_train").gradient(b, *train, d);
  for (size_t i = 0; i < 3; ++i) {
    graph->AddOutput(train->output(i), "out" + std::to_string(i));
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    graph->AddOutput(gradients[i], "d" + std::to_string(i));
  }
  return graph;
}

// Returns images [N,..] and vectors. By default, the images' mean is far larger
// than their deviation.
std::vector<Tensor> Inputs(const ir::Graph& graph, double offset) {
  std::vector<Tensor> inputs;
  for (const ir::Input& input : graph.inputs()) {
    Tensor tensor =
        test::RandomTensor(input.value->type(), 3 + inputs.size(), -1, 1);
    const bool image = tensor.type.rank() == 4;
    if (image && input.value->name() != "dy") {
      // Parts of the batch have different means.
      const size_t part = tensor.data.size() / kBatch;
      for (size_t i = 0; i < tensor.data.size(); ++i) {
        tensor.data[i] += offset + 0.3 * static_cast<double>(i / part);
      }
    }
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

// Returns rank r's shard of a batch.
Tensor PartOf(const Tensor& whole, int64_t rank, int64_t ranks) {
  Tensor part = whole;
  part.type.shape[0] /= ranks;
  const int64_t n = part.type.num_elements();
  part.data.assign(whole.data.begin() + rank * n,
                   whole.data.begin() + (rank + 1) * n);
  return part;
}

// Returns rank r's shard of images, and any other tensor whole.
Tensor ImagesOf(const Tensor& whole, int64_t rank, int64_t ranks) {
  return whole.type.rank() == 4 ? PartOf(whole, rank, ranks) : whole;
}

class SyncBatchNorm : public ::testing::TestWithParam<Kind> {};

TEST_P(SyncBatchNorm, RanksComputeWhatOneDoesWithAllOfTheBatch) {
  const auto whole = Build(GetParam(), kBatch, 1);
  for (const double offset : {0.0, 1000.0}) {
    const std::vector<Tensor> inputs = Inputs(*whole, offset);
    const std::vector<Tensor> expected =
        ir::Interpret(*whole, inputs, ir::EvalMode::kExact);
    for (const int64_t ranks : {2, 4}) {
      const auto graph = Build(GetParam(), kBatch / ranks, ranks);
      ASSERT_TRUE(test::RunPass(LowerBatchNorm, *graph, Ranks(ranks)));
      std::vector<std::vector<Tensor>> parts(ranks);
      for (int64_t r = 0; r < ranks; ++r) {
        for (const Tensor& input : inputs) {
          parts[r].push_back(ImagesOf(input, r, ranks));
        }
      }
      const auto results =
          test::InterpretRanks(*graph, parts, ir::EvalMode::kExact);
      for (size_t o = 0; o < expected.size(); ++o) {
        const std::string& name = whole->outputs()[o].name;
        // The ranks' dgamma and dbeta add up to the whole.
        Tensor sum = results[0][o];
        for (int64_t r = 1; r < ranks; ++r) {
          for (size_t i = 0; i < sum.data.size(); ++i) {
            sum.data[i] += results[r][o].data[i];
          }
        }
        const bool share = name[0] == 'd' && sum.type.rank() == 1;
        if (share) {
          EXPECT_TRUE(test::AllClose(sum, expected[o], 1e-7, 1e-7)) << name;
          continue;
        }
        for (int64_t r = 0; r < ranks; ++r) {
          EXPECT_TRUE(test::AllClose(
              results[r][o], ImagesOf(expected[o], r, ranks), 1e-7, 1e-7))
              << name << " of rank " << r << " of " << ranks;
        }
      }
    }
  }
}

// With a mean of a thousand deviations, computing the variance as a difference
// of f32 sums of squares would lose all digits.
TEST_P(SyncBatchNorm, StatisticsDoNotCancel) {
  const auto whole = Build(GetParam(), kBatch, 1, DType::kF32);
  const std::vector<Tensor> inputs = Inputs(*whole, 1000);
  const Tensor variance =
      ir::Interpret(*whole, inputs, ir::EvalMode::kExact)[2];
  const auto graph = Build(GetParam(), kBatch / 4, 4, DType::kF32);
  ASSERT_TRUE(test::RunPass(LowerBatchNorm, *graph, Ranks(4)));
  std::vector<std::vector<Tensor>> parts(4);
  for (int64_t r = 0; r < 4; ++r) {
    for (const Tensor& input : inputs)
      parts[r].push_back(ImagesOf(input, r, 4));
  }
  const auto results =
      test::InterpretRanks(*graph, parts, ir::EvalMode::kTyped);
  for (int64_t r = 0; r < 4; ++r) {
    EXPECT_TRUE(test::AllClose(results[r][2], variance, 1e-3));
    EXPECT_EQ(results[r][1].data, results[0][1].data);
    EXPECT_EQ(results[r][2].data, results[0][2].data);
  }
}

// One collective forward and one backward, with any residual.
TEST_P(SyncBatchNorm, ExchangesOnceEachWay) {
  const auto graph = Build(GetParam(), 2, 4);
  ASSERT_TRUE(test::RunPass(LowerBatchNorm, *graph, Ranks(4)));
  int exchanges = 0;
  for (const auto& node : graph->nodes())
    exchanges += node->HasTrait(ir::OpTrait::kCollective) ? 1 : 0;
  EXPECT_EQ(exchanges, 2);
}

INSTANTIATE_TEST_SUITE_P(
    Residuals, SyncBatchNorm,
    ::testing::Values(Kind{"none", false}, Kind{"none", true},
                      Kind{"add", true}, Kind{"norm", true}),
    [](const auto& test) {
      return test.param.residual + (test.param.relu ? "Relu" : "");
    });

// Returns a model's training step with lowered normalisations.
std::unique_ptr<ir::Graph> TrainingStep(int64_t batch, int64_t ranks) {
  models::ModelOptions options;
  options.batch = batch;
  options.image_size = 8;
  options.num_classes = 3;
  options.norm_ranks = ranks;
  auto graph = std::move(
      models::BuildModel("resnet20-cifar", models::Phase::kTrain, options)
          .graph);
  const test::BareTarget target;
  PassContext context(target, Ranks(ranks));
  RunPipeline(*graph, context, Stage::kForward);
  RunPipeline(*graph, context, Stage::kTraining);
  EXPECT_TRUE(LowerBatchNorm(*graph, context));
  return graph;
}

Tensor StartOf(const ir::Input& input) {
  const ir::TensorType& type = input.value->type();
  const std::string& name = input.value->name();
  if (name == "lr") return test::MakeTensor(type, {0.1});
  if (name == "labels") return test::RandomTensor(type, 1, 0, 3);
  if (name == "images") return test::RandomTensor(type, 2, 0, 255);
  const auto values =
      runtime::InitialValues(input.attrs, type.num_elements(), name, 3);
  return {type, {values.begin(), values.end()}};
}

// Compares running statistics, momentum and parameters in fp64, so that
// rounding cannot flip a ReLU.
TEST(SyncBatchNormTest, AStepOfAModelIsThatOfTheWholeBatch) {
  const auto whole = TrainingStep(kBatch, 1);
  std::vector<Tensor> inputs;
  for (const ir::Input& input : whole->inputs()) {
    inputs.push_back(StartOf(input));
  }
  const auto expected = ir::Interpret(*whole, inputs, ir::EvalMode::kExact);
  const auto graph = TrainingStep(kBatch / 4, 4);
  std::vector<std::vector<Tensor>> parts(4);
  for (int64_t r = 0; r < 4; ++r) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const std::string& name = whole->input(i)->name();
      const bool batch = name == "images" || name == "labels";
      parts[r].push_back(batch ? PartOf(inputs[i], r, 4) : inputs[i]);
    }
  }
  const auto results =
      test::InterpretRanks(*graph, parts, ir::EvalMode::kExact);
  ASSERT_EQ(results[0].size(), expected.size());
  for (size_t o = 0; o < expected.size(); ++o) {
    const ir::Output& output = whole->outputs()[o];
    if (output.alias < 0) continue;
    for (int64_t r = 0; r < 4; ++r) {
      EXPECT_TRUE(test::AllClose(results[r][o], expected[o], 1e-9, 1e-9))
          << output.name << " of rank " << r;
    }
  }
}

TEST(SyncBatchNormTest, GathersStatistics) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f32[4,3]
    %gamma = data : f32[3]
    %beta = data : f32[3]
    %y, %m, %v = batch_norm_train(%x, %gamma, %beta) {ranks=2} : f32[4,3], f32[3], f32[3] @"bn"
    return %m as "m", %v as "v"
  })");
  EXPECT_TRUE(test::RunPass(LowerBatchNorm, *graph, Ranks(2)));
  EXPECT_TRUE(test::RunPass(Simplify, *graph, Ranks(2)));
  test::ExpectSameGraph(R"(graph g {
    %x = data : f32[4,3]
    %gamma = data : f32[3]
    %beta = data : f32[3]
    %slice = slice(%x) {limit=[1,3], start=[0,0], stride=[1,1]} : f32[1,3] @"bn"
    %reshape = reshape(%slice) {shape=[3]} : f32[3] @"bn"
    %broadcast = broadcast(%reshape) {dims=[1], shape=[4,3]} : f32[4,3] @"bn"
    %sub = sub(%x, %broadcast) : f32[4,3] @"bn"
    %reduce = reduce(%sub) {dims=[0], kind="sum"} : f32[3] @"bn"
    %constant = constant() {dtype="f32", shape=[3], value=[4.0]} : f32[3] @"bn"
    %div = div(%reduce, %constant) : f32[3] @"bn"
    %mul = mul(%sub, %sub) : f32[4,3] @"bn"
    %reduce_1 = reduce(%mul) {dims=[0], kind="sum"} : f32[3] @"bn"
    %div_1 = div(%reduce_1, %constant) : f32[3] @"bn"
    %mul_1 = mul(%div, %div) : f32[3] @"bn"
    %sub_1 = sub(%div_1, %mul_1) : f32[3] @"bn"
    %add = add(%reshape, %div) : f32[3] @"bn"
    %constant_2 = constant() {dtype="f32", shape=[3], value=[0.0]} : f32[3] @"bn"
    %maximum = maximum(%sub_1, %constant_2) : f32[3] @"bn"
    %iota = iota() {dim=0, dtype="i32", shape=[2,3]} : i32[2,3] @"bn"
    %broadcast_1 = broadcast(%maximum) {dims=[1], shape=[2,3]} : f32[2,3] @"bn"
    %broadcast_2 = broadcast(%add) {dims=[1], shape=[2,3]} : f32[2,3] @"bn"
    %constant_3 = constant() {dtype="i32", shape=[2,3], value=[0.0]} : i32[2,3] @"bn"
    %compare = compare(%iota, %constant_3) {direction="eq"} : bool[2,3] @"bn"
    %select = select(%compare, %broadcast_2, %broadcast_1) : f32[2,3] @"bn"
    %all_gather = all_gather(%select) {ranks=2} : f32[2,2,3] @"bn"
    %slice_1 = slice(%all_gather) {limit=[2,1,3], start=[0,0,0], stride=[1,1,1]} : f32[2,1,3] @"bn"
    %slice_2 = slice(%all_gather) {limit=[1,1,3], start=[0,0,0], stride=[1,1,1]} : f32[1,1,3] @"bn"
    %reshape_1 = reshape(%slice_2) {shape=[3]} : f32[3] @"bn"
    %broadcast_3 = broadcast(%reshape_1) {dims=[2], shape=[2,1,3]} : f32[2,1,3] @"bn"
    %sub_2 = sub(%slice_1, %broadcast_3) : f32[2,1,3] @"bn"
    %reduce_2 = reduce(%sub_2) {dims=[0,1], kind="sum"} : f32[3] @"bn"
    %constant_4 = constant() {dtype="f32", shape=[3], value=[2.0]} : f32[3] @"bn"
    %div_2 = div(%reduce_2, %constant_4) : f32[3] @"bn"
    %mul_2 = mul(%div_2, %div_2) : f32[3] @"bn"
    %mul_3 = mul(%sub_2, %sub_2) : f32[2,1,3] @"bn"
    %reduce_3 = reduce(%mul_3) {dims=[0,1], kind="sum"} : f32[3] @"bn"
    %div_3 = div(%reduce_3, %constant_4) : f32[3] @"bn"
    %sub_3 = sub(%div_3, %mul_2) : f32[3] @"bn"
    %slice_3 = slice(%all_gather) {limit=[2,2,3], start=[0,1,0], stride=[1,1,1]} : f32[2,1,3] @"bn"
    %reduce_4 = reduce(%slice_3) {dims=[0,1], kind="sum"} : f32[3] @"bn"
    %div_4 = div(%reduce_4, %constant_4) : f32[3] @"bn"
    %m = add(%reshape_1, %div_2) : f32[3] @"bn"
    %maximum_1 = maximum(%sub_3, %constant_2) : f32[3] @"bn"
    %v = add(%div_4, %maximum_1) : f32[3] @"bn"
    return %m as "m", %v as "v"
  })",
                        *graph);
}

// Nothing before this normalisation is trained, so no gradient of the images is
// needed.
TEST(SyncBatchNormTest, SendsNothingForAGradientThatNobodyReads) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %dy = data : f32[4,3]
    %x = data : f32[4,3]
    %gamma = data : f32[3]
    %beta = data : f32[3]
    %m = data : f32[3]
    %v = data : f32[3]
    %dx, %dgamma, %dbeta = batch_norm_grad(%dy, %x, %gamma, %beta, %m, %v) {ranks=2} : f32[4,3], f32[3], f32[3]
    return %dgamma as "dgamma", %dbeta as "dbeta"
  })");
  EXPECT_TRUE(test::RunPass(LowerBatchNorm, *graph, Ranks(2)));
  for (const auto& node : graph->nodes())
    EXPECT_FALSE(node->HasTrait(ir::OpTrait::kCollective));
}

TEST(SyncBatchNormTest, RejectsAnotherNumberOfRanks) {
  const auto graph = Build({"none", false}, 4, 2);
  try {
    test::RunPass(LowerBatchNorm, *graph, Ranks(4));
    FAIL() << "statistics over 2 of 4 ranks";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kGraph);
    EXPECT_THAT(e.what(),
                HasSubstr("statistics over 2 ranks, expected those of 4"));
  }
}

}  // namespace
}  // namespace fusor::passes
