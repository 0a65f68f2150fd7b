// Compares every gradient rule of the registry, and the builder's composites,
// with finite differences.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>

#include "ir/builder.h"
#include "ir/op.h"
#include "tests/ir/builder_program.h"
#include "tests/testing/grad_check.h"

namespace fusor::ir {
namespace {

using test::F64;
using test::GradCheck;
using test::MakeTensor;
using test::RandomTensor;
using Ints = std::vector<int64_t>;

// Draws values in [low, high).
Tensor Random(Shape shape, uint64_t seed, double low = -1, double high = 1) {
  return RandomTensor(F64(std::move(shape)), seed, low, high);
}

// Draws values in [0.5, 1.5), away from the poles of log, sqrt and division.
Tensor Positive(Shape shape, uint64_t seed) {
  return Random(std::move(shape), seed, 0.5, 1.5);
}

// Returns distinct multiples of 0.1, plus 0.05, with both signs in a scrambled
// order. There are no ties, and none is near the kink at 0.
Tensor Distinct(Shape shape, int64_t stride = 7) {
  Tensor tensor{F64(std::move(shape)), {}};
  const int64_t count = tensor.type.num_elements();
  while (std::gcd(count, stride) != 1) ++stride;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t rank = i * stride % count - count / 2;
    tensor.data.push_back(0.1 * static_cast<double>(rank) + 0.05);
  }
  return tensor;
}

Tensor Coins(Shape shape, uint64_t seed) {
  return RandomTensor({DType::kBool, std::move(shape), {}}, seed);
}

// An application of an op. Its first result is differentiated.
struct Example {
  std::vector<Tensor> inputs;
  Attrs attrs;
};

using Examples = std::map<std::string, std::vector<Example>, std::less<>>;

Examples ElementwiseExamples() {
  const Shape s{2, 3};
  Tensor scrambled = Distinct(s, 11);
  for (double& x : scrambled.data) x += 0.03;  // no ties with Distinct(s)
  return {
      {"neg", {{{Random(s, 1)}, {}}}},
      {"abs", {{{Distinct(s)}, {}}}},
      {"exp", {{{Random(s, 1)}, {}}}},
      {"log", {{{Positive(s, 1)}, {}}}},
      {"sqrt", {{{Positive(s, 1)}, {}}}},
      {"rsqrt", {{{Positive(s, 1)}, {}}}},
      {"tanh", {{{Random(s, 1)}, {}}}},
      {"sin", {{{Random(s, 1, -4, 4)}, {}}}},
      {"cos", {{{Random(s, 1, -4, 4)}, {}}}},
      {"erf", {{{Random(s, 1)}, {}}}},
      {"relu", {{{Distinct(s)}, {}}}},
      {"cast", {{{Random(s, 1)}, {{"dtype", std::string("f32")}}}}},
      {"add", {{{Random(s, 1), Random(s, 2)}, {}}}},
      {"sub", {{{Random(s, 1), Random(s, 2)}, {}}}},
      {"mul", {{{Random(s, 1), Random(s, 2)}, {}}}},
      {"div", {{{Random(s, 1), Positive(s, 2)}, {}}}},
      {"maximum", {{{Distinct(s), scrambled}, {}}}},
      {"minimum", {{{Distinct(s), scrambled}, {}}}},
      {"pow", {{{Positive(s, 1), Random(s, 2, -3, 3)}, {}}}},
      {"remainder", {{{Distinct(s), Positive(s, 2)}, {}}}},
      {"select", {{{Coins(s, 1), Random(s, 2), Random(s, 3)}, {}}}},
  };
}

Examples ShapeExamples() {
  const Tensor x = Random({2, 3, 4}, 1);
  return {
      {"broadcast",
       {{{Random({3}, 1)}, {{"shape", Ints{2, 3}}, {"dims", Ints{1}}}},
        {{Random({2, 3}, 1)}, {{"shape", Ints{2, 4, 3}}, {"dims", Ints{0, 2}}}},
        {{Random({}, 1)}, {{"shape", Ints{2, 2}}, {"dims", Ints{}}}}}},
      {"reshape", {{{x}, {{"shape", Ints{4, 6}}}}}},
      {"transpose", {{{x}, {{"permutation", Ints{2, 0, 1}}}}}},
      {"slice",
       {{{x},
         {{"start", Ints{1, 0, 0}},
          {"limit", Ints{2, 3, 4}},
          {"stride", Ints{1, 2, 3}}}},
        {{x},
         {{"start", Ints{0, 1, 1}},
          {"limit", Ints{2, 2, 4}},
          {"stride", Ints{1, 1, 2}}}}}},
      {"pad",
       {{{x},
         {{"low", Ints{1, 0, 2}},
          {"high", Ints{0, 1, 0}},
          {"interior", Ints{0, 2, 1}},
          {"value", 3.0}}}}},
      {"concat",
       {{{x, Random({2, 1, 4}, 2), x}, {{"dim", int64_t{1}}}},
        {{x}, {{"dim", int64_t{0}}}}}},
      {"copy", {{{x}, {{"layout", std::string("bca")}}}}},
  };
}

Examples ReduceExamples() {
  Examples examples;
  const Tensor distinct = Distinct({3, 2, 4});
  for (const char* kind : {"sum", "prod", "max", "min"}) {
    for (const Ints& dims : {Ints{1}, Ints{0, 2}, Ints{0, 1, 2}}) {
      examples["reduce"].push_back(
          {{distinct}, {{"kind", std::string(kind)}, {"dims", dims}}});
    }
  }
  // Rows with one zero, two zeros and none.
  Tensor zeros = Random({3, 4}, 1);
  for (const size_t at : {2, 4, 7}) zeros.data[at] = 0;
  examples["reduce"].push_back(
      {{zeros}, {{"kind", std::string("prod")}, {"dims", Ints{1}}}});
  return examples;
}

// Returns integers. Some are out of range as indices.
Tensor Indices(Shape shape, std::vector<double> values) {
  return MakeTensor({DType::kI32, std::move(shape), {}}, std::move(values));
}

Examples IndexedExamples() {
  const Tensor rows = Indices({4}, {2, 0, -1, 2});
  const Tensor along = Indices({2, 3, 2}, {0, 3, 2, 2, 1, 0, 3, 3, 3, 1, 2, 0});
  Examples examples;
  examples["gather"] = {
      {{Random({2, 3, 4}, 1), along}, {{"dims", Ints{0, 1, -1}}}},
      {{Random({3, 4}, 1), Indices({5}, {2, 0, 1, 2, 2}),
        Indices({5}, {3, 3, 0, 3, 1})},
       {{"dims", Ints{-1, -1}}}},
      // A dimension of the result that x does not have.
      {{Random({3, 2}, 1), Indices({2, 4}, {0, 1, 2, 2, 1, 1, 0, 2})},
       {{"dims", Ints{-1, 0}}}},
  };
  examples["scatter_add"] = {
      {{Random({4, 2}, 1), rows},
       {{"shape", Ints{3, 2}}, {"dims", Ints{-1, 1}}, {"index_dims", Ints{0}}}},
      {{Random({2, 3, 2}, 1), along},
       {{"shape", Ints{2, 3, 4}},
        {"dims", Ints{0, 1, -1}},
        {"index_dims", Ints{0, 1, 2}}}},
      {{Random({4, 2}, 1), rows, Indices({2}, {1, 1})},
       {{"shape", Ints{3, 2}},
        {"dims", Ints{-1, -1}},
        {"index_dims", Ints{0, 1}}}},
  };
  for (const bool exclusive : {false, true}) {
    for (const bool reverse : {false, true}) {
      examples["cumsum"].push_back({{Random({2, 3, 4}, 1)},
                                    {{"dim", int64_t{exclusive ? 1 : 2}},
                                     {"exclusive", exclusive},
                                     {"reverse", reverse}}});
    }
  }
  return examples;
}

Examples LibraryExamples() {
  Examples examples;
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      examples["matmul"].push_back(
          {{Random(ta ? Shape{4, 3} : Shape{3, 4}, 1),
            Random(tb ? Shape{2, 4} : Shape{4, 2}, 2)},
           {{"transpose_a", ta}, {"transpose_b", tb}}});
    }
  }
  examples["matmul"].push_back(
      {{Random({2, 2, 3, 4}, 1), Random({2, 2, 4, 2}, 2)}, {}});
  examples["conv2d"] = {
      {{Random({2, 3, 4, 5}, 1), Random({2, 3, 3, 3}, 2), Random({2}, 3)}, {}},
      {{Random({2, 3, 4, 5}, 1), Random({2, 3, 3, 3}, 2), Random({2}, 3)},
       {{"pad", Ints{1, 1}}}},
      // No window reads the last row and column.
      {{Random({1, 4, 6, 5}, 1), Random({6, 2, 3, 2}, 2)},
       {{"stride", Ints{2, 2}}, {"groups", int64_t{2}}}},
      {{Random({1, 2, 7, 6}, 1), Random({2, 2, 3, 2}, 2)},
       {{"stride", Ints{2, 1}}, {"pad", Ints{2, 1}}, {"dilation", Ints{2, 3}}}},
  };
  examples["conv2d"].push_back(
      {{Random({1, 2, 5, 4}, 1), Random({2, 1, 2, 3}, 2)},
       {{"pad", Ints{0, 2, 1, 0}}, {"groups", int64_t{2}}}});
  examples["conv2d_grad_input"] = {
      {{Random({2, 4, 3, 3}, 1), Random({4, 2, 3, 2}, 2)},
       {{"input_shape", Shape{2, 4, 6, 5}},
        {"stride", Ints{2, 2}},
        {"pad", Ints{1, 0, 0, 1}},
        {"groups", int64_t{2}}}}};
  examples["conv2d_grad_weight"] = {
      {{Random({2, 4, 6, 5}, 1), Random({2, 4, 3, 3}, 2)},
       {{"weight_shape", Shape{4, 2, 3, 2}},
        {"stride", Ints{2, 2}},
        {"pad", Ints{1, 0, 0, 1}},
        {"groups", int64_t{2}}}}};
  const Tensor x = Distinct({2, 2, 5, 4});
  const Attrs overlapping{
      {"window", Ints{3, 3}}, {"stride", Ints{2, 1}}, {"pad", Ints{1, 1}}};
  const Attrs plain{{"window", Ints{2, 2}}, {"stride", Ints{2, 2}}};
  Attrs without_pad = overlapping;
  without_pad.Set("count_include_pad", false);
  examples["max_pool"] = {{{x}, overlapping}, {{x}, plain}};
  examples["avg_pool"] = {{{x}, overlapping}, {{x}, plain}, {{x}, without_pad}};
  return examples;
}

Examples NormExamples() {
  Examples examples;
  std::vector<Example>& list = examples["batch_norm_train"];
  for (const bool relu : {false, true}) {
    for (const Shape& shape : {Shape{3, 2, 2, 2}, Shape{5, 2}}) {
      const std::vector<Tensor> plain{Random(shape, 11), Positive({2}, 2),
                                      Random({2}, 3)};
      std::vector<Tensor> add = plain;
      add.push_back(Random(shape, 14));
      std::vector<Tensor> norm = add;
      norm.push_back(Positive({2}, 5));
      norm.push_back(Random({2}, 6));
      list.push_back({plain, {{"relu", relu}}});
      list.push_back({add, {{"relu", relu}, {"residual", std::string("add")}}});
      list.push_back(
          {norm, {{"relu", relu}, {"residual", std::string("norm")}}});
    }
  }
  return examples;
}

const Examples& AllExamples() {
  static const Examples all = [] {
    Examples merged;
    for (const auto& family :
         {ElementwiseExamples(), ShapeExamples(), IndexedExamples(),
          ReduceExamples(), LibraryExamples(), NormExamples()}) {
      merged.insert(family.begin(), family.end());
    }
    return merged;
  }();
  return all;
}

// Excludes custom_gradient, which does not compute what it differentiates.
std::vector<std::string> OpsWithGradients() {
  std::vector<std::string> names;
  for (const OpDef* op : AllOps()) {
    const bool own = op->kind == OpKind::kCustomGradient;
    if (op->gradient != nullptr && !own) names.emplace_back(op->name);
  }
  return names;
}

class GradientRule : public ::testing::TestWithParam<std::string> {};

TEST_P(GradientRule, MatchesFiniteDifferences) {
  const auto it = AllExamples().find(GetParam());
  ASSERT_NE(it, AllExamples().end()) << "no example of " << GetParam();
  for (size_t i = 0; i < it->second.size(); ++i) {
    const Example& example = it->second[i];
    const auto apply = [&](Builder& b, const std::vector<Value*>& x) {
      return std::vector<Value*>{
          b.Add(GetParam(), x, example.attrs)->output(0)};
    };
    EXPECT_TRUE(GradCheck(apply, example.inputs)) << "example " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, GradientRule,
                         ::testing::ValuesIn(OpsWithGradients()),
                         [](const auto& test) { return test.param; });

TEST(Gradient, ExamplesNameOnlyOpsWithARule) {
  for (const auto& [name, examples] : AllExamples()) {
    EXPECT_THAT(OpsWithGradients(), ::testing::Contains(name));
  }
}

// --- Composites --------------------------------------------------------------

using Values = std::vector<Value*>;

TEST(CompositeGradient, Custom) {
  // x exp(y) with both gradients; a composite with another inside.
  const auto times_exp = [](Builder& b, const Values& x) {
    Value* e = b.CustomGradient(b.Exp(x[1]), {x[1]}, [&](Value* dy) {
      return Values{b.Times(dy, b.Exp(x[1]))};
    });
    return Values{b.CustomGradient(b.Times(x[0], e), x, [&](Value* dy) {
      return Values{b.Times(dy, e), b.Times(b.Times(dy, x[0]), e)};
    })};
  };
  EXPECT_TRUE(GradCheck(times_exp, {Random({2, 3}, 1), Random({2, 3}, 2)}));
}

TEST(CompositeGradient, Linear) {
  const auto linear = [](Builder& b, const Values& x) {
    return Values{b.Linear(x[0], x[1], x[2])};
  };
  EXPECT_TRUE(GradCheck(
      linear, {Random({3, 4}, 1), Random({2, 4}, 2), Random({2}, 3)}));
}

TEST(CompositeGradient, LinearOfRankThree) {
  const auto linear = [](Builder& b, const Values& x) {
    return Values{b.Linear(x[0], x[1], x[2])};
  };
  EXPECT_TRUE(GradCheck(
      linear, {Random({2, 3, 4}, 1), Random({2, 4}, 2), Random({2}, 3)}));
}

TEST(CompositeGradient, BroadcastMatmul) {
  const auto matmul = [](Builder& b, const Values& x) {
    return Values{b.Matmul(x[0], x[1])};
  };
  for (const auto& [a, c] :
       std::vector<std::pair<Shape, Shape>>{{{2, 1, 2, 3}, {2, 3, 2}},
                                            {{3, 2, 3}, {3, 2}},
                                            {{2, 3}, {2, 3, 2}},
                                            {{3}, {2, 3, 2}},
                                            {{2, 2, 3}, {3}}}) {
    EXPECT_TRUE(GradCheck(matmul, {Random(a, 1), Random(c, 2)}));
  }
}

TEST(CompositeGradient, BroadcastSelect) {
  const auto select = [](Builder& b, const Values& x) {
    return Values{b.Select(x[0], x[1], x[2])};
  };
  EXPECT_TRUE(GradCheck(
      select, {Coins({3, 1}, 1), Random({4}, 2), Random({2, 1, 1}, 3)}));
}

TEST(CompositeGradient, ReductionsThatKeepDims) {
  const auto reduce = [](Builder& b, const Values& x) {
    Value* centered = b.Minus(x[0], b.ReduceMean(x[0], {-1, 0}, true));
    return Values{b.Divide(centered, b.ReduceMax(x[0], {1}, true))};
  };
  Tensor x = Distinct({2, 3, 2});
  for (double& v : x.data) v += 3;
  EXPECT_TRUE(GradCheck(reduce, {x}));
}

TEST(CompositeGradient, ActivationsAndScalarOperands) {
  const Tensor x = Distinct({4, 10});
  Tensor wide = x;
  for (double& v : wide.data) v = 5 * v + 0.1;
  const auto check = [](auto build, const Tensor& at) {
    EXPECT_TRUE(GradCheck(
        [&](Builder& b, const Values& v) { return Values{build(b, v[0])}; },
        {at}));
  };
  check([](Builder& b, Value* v) { return b.Silu(v); }, wide);
  check([](Builder& b, Value* v) { return b.Relu6(v); }, wide);
  check([](Builder& b, Value* v) { return b.Clamp(v, -1, 1.2); }, x);
  check([](Builder& b, Value* v) { return b.Softplus(v); }, wide);
  check([](Builder& b, Value* v) { return b.Softplus(v, 0.5); }, wide);
  check([](Builder& b, Value* v) { return b.Maximum(v, 0.2); }, x);
  check([](Builder& b, Value* v) { return b.Minimum(v, 0.2); }, x);
  check([](Builder& b, Value* v) { return b.Pow(v, 3.0); }, x);
}

// The gradient of constant indices is a gather, of others a scatter.
TEST(CompositeGradient, AccessByIndex) {
  const std::vector<double> index{3, 0, 3, 1, 2, 3};
  for (const int64_t dim : {0, 1, 2}) {
    for (const bool constant : {false, true}) {
      const auto take = [&](Builder& b, const Values& x) {
        Value* at = constant ? b.Constant(DType::kI32, {2, 3}, index) : x[1];
        return Values{b.Take(x[0], at, dim)};
      };
      EXPECT_TRUE(GradCheck(
          take,
          {Random({4, 4, 4}, 1), MakeTensor({DType::kI32, {2, 3}, {}}, index)}))
          << dim;
    }
  }
  const auto spread = [](Builder& b, const Values& x) {
    return Values{b.ScatterAdd(x[0], {x[1]}, {5, 3}, {-1, 1})};
  };
  EXPECT_TRUE(
      GradCheck(spread, {Random({4, 3}, 1), Indices({4, 1}, {4, 0, 7, 4})}));
}

TEST(CompositeGradient, CumulativeSum) {
  const auto sum = [](Builder& b, const Values& x) {
    return Values{b.CumulativeSum(b.Times(x[0], x[0]), -1)};
  };
  EXPECT_TRUE(GradCheck(sum, {Random({3, 5}, 1)}));
}

TEST(CompositeGradient, ConvTranspose2d) {
  const auto conv = [](Builder& b, const Values& x) {
    return Values{b.ConvTranspose2d(x[0], x[1], x[2],
                                    {.stride_h = 2,
                                     .stride_w = 3,
                                     .pad_h = 1,
                                     .far_pad_w = 1,
                                     .dilation_w = 2,
                                     .groups = 2},
                                    1, 2)};
  };
  EXPECT_TRUE(GradCheck(conv, {Random({2, 4, 3, 2}, 1), Random({4, 3, 3, 2}, 2),
                               Random({6}, 3)}));
}

TEST(CompositeGradient, Conv3d) {
  const auto conv = [](Builder& b, const Values& x) {
    return Values{b.Conv3d(x[0], x[1], x[2],
                           {.stride = {2, 1, 1},
                            .pad = {1, 0, 1},
                            .far_pad = {2, -1, 0},
                            .dilation = {2, 1, 1},
                            .groups = 2})};
  };
  EXPECT_TRUE(GradCheck(conv, {Random({2, 4, 5, 3, 3}, 1),
                               Random({2, 2, 2, 2, 2}, 2), Random({2}, 3)}));
  // The stride passes over the second depth of x.
  const auto first = [](Builder& b, const Values& x) {
    return Values{b.Conv3d(x[0], x[1], nullptr, {.stride = {2, 2, 2}})};
  };
  EXPECT_TRUE(GradCheck(
      first, {Random({2, 2, 2, 3, 3}, 1), Random({3, 2, 1, 1, 1}, 2)}));
}

TEST(CompositeGradient, Sigmoid) {
  const auto sigmoid = [](Builder& b, const Values& x) {
    return Values{b.Sigmoid(x[0])};
  };
  EXPECT_TRUE(GradCheck(sigmoid, {Random({2, 3}, 1, -3, 3)}));
}

TEST(CompositeGradient, Gelu) {
  const auto gelu = [](Builder& b, const Values& x) {
    return Values{b.Gelu(x[0])};
  };
  const auto by_tanh = [](Builder& b, const Values& x) {
    return Values{b.GeluTanh(x[0])};
  };
  EXPECT_TRUE(GradCheck(gelu, {Random({2, 3}, 1, -3, 3)}));
  EXPECT_TRUE(GradCheck(by_tanh, {Random({2, 3}, 1, -3, 3)}));
}

TEST(CompositeGradient, Softmax) {
  const auto softmax = [](Builder& b, const Values& x) {
    return Values{b.Softmax(x[0])};
  };
  EXPECT_TRUE(GradCheck(softmax, {Distinct({2, 3, 4})}));
}

TEST(CompositeGradient, LogSoftmax) {
  const auto log_softmax = [](Builder& b, const Values& x) {
    return Values{b.LogSoftmax(x[0])};
  };
  EXPECT_TRUE(GradCheck(log_softmax, {Distinct({4, 5})}));
}

TEST(CompositeGradient, LayerNorm) {
  const auto layer_norm = [](Builder& b, const Values& x) {
    return Values{b.LayerNorm(x[0], x[1], x[2], 1e-5)};
  };
  EXPECT_TRUE(GradCheck(layer_norm,
                        {Random({3, 6}, 1), Positive({6}, 2), Random({6}, 3)}));
}

TEST(CompositeGradient, LayerNormOverChannelsAndOverTwoDims) {
  const auto channels = [](Builder& b, const Values& x) {
    return Values{b.LayerNorm(x[0], x[1], x[2], 1e-5, 1)};
  };
  EXPECT_TRUE(GradCheck(
      channels, {Random({2, 6, 3}, 1), Positive({6}, 2), Random({6}, 3)}));
  const auto two = [](Builder& b, const Values& x) {
    return Values{b.LayerNorm(x[0], x[1], x[2], 1e-5)};
  };
  EXPECT_TRUE(GradCheck(
      two, {Random({3, 2, 4}, 1), Positive({2, 4}, 2), Random({2, 4}, 3)}));
}

TEST(CompositeGradient, CrossEntropyWithAndWithoutSmoothing) {
  const Tensor labels = MakeTensor({DType::kI32, {3}, {}}, {0, 4, 2});
  for (const double smoothing : {0.0, 0.1}) {
    const auto loss = [&](Builder& b, const Values& x) {
      return Values{b.CrossEntropy(x[0], x[1], {.label_smoothing = smoothing})};
    };
    EXPECT_TRUE(GradCheck(loss, {Random({3, 5}, 1, -2, 2), labels}));
    const Tensor pixels = MakeTensor({DType::kI32, {1, 3}, {}}, {0, 4, 2});
    EXPECT_TRUE(GradCheck(loss, {Random({1, 5, 3}, 1, -2, 2), pixels}));
  }
}

TEST(CompositeGradient, AdaptiveAvgPool2d) {
  for (const int64_t out : {1, 2, 3, 6}) {
    const auto pool = [&](Builder& b, const Values& x) {
      return Values{b.AdaptiveAvgPool2d(x[0], out, 2)};
    };
    EXPECT_TRUE(GradCheck(pool, {Random({2, 3, 6, 5}, 1)})) << out;
  }
}

TEST(CompositeGradient, GlobalAvgPool) {
  const auto pool = [](Builder& b, const Values& x) {
    return Values{b.GlobalAvgPool(x[0])};
  };
  EXPECT_TRUE(GradCheck(pool, {Random({2, 3, 4, 5}, 1)}));
}

TEST(CompositeGradient, Dropout) {
  const Tensor key = MakeTensor({DType::kI64, {}, {}}, {42});
  const Tensor step = MakeTensor({DType::kI32, {}, {}}, {3});
  const auto dropout = [](Builder& b, const Values& x) {
    return Values{b.Dropout(x[0], 0.4, x[1], x[2])};
  };
  EXPECT_TRUE(GradCheck(dropout, {Random({4, 8}, 1), key, step}));
}

TEST(CompositeGradient, BatchNormInference) {
  const auto norm = [](Builder& b, const Values& x) {
    return Values{b.BatchNormInference(x[0], x[1], x[2], x[3], x[4], 1e-5)};
  };
  EXPECT_TRUE(
      GradCheck(norm, {Random({2, 3, 2, 2}, 1), Positive({3}, 2),
                       Random({3}, 3), Random({3}, 4), Positive({3}, 5)}));
}

TEST(CompositeGradient, ResidualBlockOfConvolutionAndBatchNorm) {
  const auto block = [](Builder& b, const Values& x) {
    Value* y = b.Conv2d(x[0], x[1], nullptr, {.pad_h = 1, .pad_w = 1});
    y = b.BatchNormTrain(y, x[2], x[3], 1e-5).y;
    return Values{b.Gelu(b.Plus(y, x[0]))};
  };
  EXPECT_TRUE(
      GradCheck(block, {Random({2, 3, 4, 4}, 1), Random({3, 3, 3, 3}, 2),
                        Positive({3}, 3), Random({3}, 4)}));
}

}  // namespace
}  // namespace fusor::ir
