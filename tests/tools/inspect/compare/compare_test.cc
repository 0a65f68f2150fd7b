#include "tools/inspect/compare/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ir/builder.h"
#include "ir/support/error.h"
#include "ir/target/target.h"
#include "models/layers.h"
#include "models/model.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/data/datasets/synthetic.h"
#include "runtime/program.h"
#include "tools/inspect/compare/compare_metrics.h"

namespace fusor::inspect {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Variant MakeVariant(const std::string& name, bool fusion, bool eager) {
  Variant variant;
  variant.name = name;
  variant.backend = &runtime::LoadBackend("cpu");
  variant.compile.passes.fusion = fusion;
  variant.compile.passes.eager_rounding = eager;
  return variant;
}

template <typename T>
std::vector<char> BytesOf(const T* data, size_t count) {
  const auto* bytes = reinterpret_cast<const char*>(data);
  return {bytes, bytes + count * sizeof(T)};
}

InputBytes SyntheticInputs(const models::ModelOptions& options) {
  runtime::SyntheticSource source(
      {.batch_size = static_cast<int>(options.batch),
       .image_size = static_cast<int>(options.image_size),
       .num_classes = static_cast<int>(options.num_classes),
       .seed = 3});
  const runtime::Batch& batch = source.Next();
  const float lr = 0.1f;
  const int64_t key = 7;
  const int32_t step = 1;
  return {{"images", BytesOf(batch.images().data(), batch.images().size())},
          {"labels", BytesOf(batch.labels.data(), batch.labels.size())},
          {"lr", BytesOf(&lr, 1)},
          {"random_key", BytesOf(&key, 1)},
          {"step", BytesOf(&step, 1)}};
}

Comparison CompareFusion(const ir::Graph& model, const InputBytes& inputs,
                         bool eager, const CompareOptions& how) {
  return Compare(
      model, {MakeVariant("off", false, eager), MakeVariant("on", true, eager)},
      inputs, how);
}

constexpr models::ModelOptions kCifar = {
    .batch = 4, .image_size = 32, .num_classes = 10};
std::unique_ptr<ir::Graph> Cifar() {
  return models::BuildModel("resnet20-cifar", models::Phase::kTrain, kCifar)
      .graph;
}

const CompareOptions kNumbersOnly = {.warmup = 0, .rounds = 0, .profiles = 0};

// Nothing runs, so the other ranks need not exist.
TEST(Compare, PlansOfSeveralRanksNeedNoCommunicator) {
  std::vector<Variant> variants(2, MakeVariant("exact", true, false));
  variants[1].name = "one";
  for (Variant& variant : variants) variant.compile.passes.world_size = 8;
  variants[1].compile.passes.buckets.rule = passes::BucketRule::kOne;
  CompareOptions how;
  how.plans_only = true;
  const Comparison comparison = Compare(*Cifar(), variants, {}, how);
  EXPECT_EQ(comparison.ranks, 8);
  EXPECT_EQ(comparison.variants[0].session, nullptr);
  EXPECT_TRUE(comparison.variants[1].differences.empty());
  const auto facts = MetricsOf(comparison);
  EXPECT_EQ(facts[1].communication.buckets(), 1);
  EXPECT_EQ(facts[0].communication.bucket_bytes(),
            facts[1].communication.bucket_bytes());
  EXPECT_GT(facts[1].communication.not_overlapped_us,
            facts[0].communication.not_overlapped_us);
  const std::string text = ComparisonText(comparison, facts, 5);
  EXPECT_THAT(
      text, AllOf(HasSubstr("gradient buckets"), Not(HasSubstr("step, median")),
                  Not(HasSubstr("from the same weights"))));
  const json out = ComparisonJson(comparison, facts);
  EXPECT_EQ(out["variants"][1]["communication"]["collectives"].size(), 1U);
}

int64_t CountOf(const VariantRun& run, ValueKind kind) {
  int64_t count = 0;
  for (const ValueDifference& value : run.differences) {
    count += value.kind == kind ? 1 : 0;
  }
  return count;
}

// Returns a small network like VGG: convolutions with bias and ReLU, pools,
// dropout and dense layers.
std::unique_ptr<ir::Graph> SmallVgg(const models::ModelOptions& options,
                                    bool batch_norm) {
  auto graph = std::make_unique<ir::Graph>("small_vgg");
  ir::Builder builder(*graph);
  models::Layers layers(builder, models::Phase::kTrain, options);
  ir::Value* x = layers.Images();
  for (int i = 0; i < 3; ++i) {
    const std::string name = fmt::format("features.{}", i);
    x = layers.Conv(x, name + ".conv", 16 << i, {.bias = true});
    if (batch_norm) x = layers.BatchNorm(x, name + ".bn");
    x = layers.MaxPool(layers.Relu(x, name + ".relu"), name + ".pool", 2, 2, 0);
  }
  const ir::Shape& shape = x->type().shape;
  x = builder.Reshape(x, {shape[0], shape[1] * shape[2] * shape[3]});
  x = layers.LinearNormal(x, "classifier.0", 64, 0.05);
  x = layers.Dropout(layers.Relu(x, "classifier.1"), "classifier.2");
  layers.Classify(
      layers.LinearNormal(x, "classifier.3", options.num_classes, 0.05));
  return graph;
}

// Checks the guarantee of eager rounding. `unmatched` counts calls that only
// one of the programs has.
void ExpectThatFusionChangesNoBit(const ir::Graph& model,
                                  const models::ModelOptions& options,
                                  int64_t unmatched = 0) {
  const Comparison comparison =
      CompareFusion(model, SyntheticInputs(options), true, kNumbersOnly);
  const VariantRun& run = comparison.variants[1];
  EXPECT_GE(CountOf(run, ValueKind::kGradient), 10);
  EXPECT_GE(CountOf(run, ValueKind::kState), 20);
  EXPECT_GE(CountOf(run, ValueKind::kIntermediate), 15);
  EXPECT_EQ(run.unmatched_calls, unmatched);
  for (const ValueDifference& value : WorstFirst(run)) {
    ADD_FAILURE() << ValueKindName(value.kind) << " " << value.name << ": "
                  << value.difference.differing << " of "
                  << value.difference.elements << " elements differ, by "
                  << value.difference.max_ulp << " ULP";
  }
  EXPECT_THAT(IdentityLine(run), AllOf(HasSubstr("bit-identical: loss, "),
                                       Not(HasSubstr("different"))));
}

TEST(EagerRounding, ResidualNetworksStayBitIdentical) {
  const std::pair<std::string, models::ModelOptions> networks[] = {
      {"resnet20-cifar", kCifar},
      {"resnet18", {.batch = 2, .image_size = 64, .num_classes = 10}},
      {"resnet50", {.batch = 2, .image_size = 64, .num_classes = 10}}};
  for (const auto& [arch, options] : networks) {
    SCOPED_TRACE(arch);
    ExpectThatFusionChangesNoBit(
        *models::BuildModel(arch, models::Phase::kTrain, options).graph,
        options);
  }
}

TEST(EagerRounding, PlainNetworksStayBitIdentical) {
  for (const bool batch_norm : {false, true}) {
    SCOPED_TRACE(batch_norm);
    // With fusion, three pools' gradients are masked before pooling, without it
    // after.
    ExpectThatFusionChangesNoBit(*SmallVgg(kCifar, batch_norm), kCifar,
                                 batch_norm ? 0 : 2 * 3);
  }
}

// A random network amplifies a difference in the last bit of fp32 to some
// percent of deep gradients. How much depends on the order of additions, and so
// on the number of threads.
constexpr double kAmplifiedRounding = 0.1;

TEST(Compare, FastRoundingStaysWithinRounding) {
  const Comparison comparison =
      CompareFusion(*Cifar(), SyntheticInputs(kCifar), false, kNumbersOnly);
  for (const KindSummary& sum : Summarize(comparison.variants[1])) {
    EXPECT_LT(sum.relative, kAmplifiedRounding) << ValueKindName(sum.kind);
  }
}

TEST(Compare, TimesAndCountsEveryVariant) {
  const Comparison comparison =
      CompareFusion(*Cifar(), SyntheticInputs(kCifar), false,
                    {.warmup = 1, .rounds = 3, .profiles = 1, .values = false});
  const std::vector<VariantMetrics> facts = MetricsOf(comparison);
  ASSERT_EQ(facts.size(), 2);
  for (size_t v = 0; v < 2; ++v) {
    const VariantRun& run = comparison.variants[v];
    EXPECT_EQ(run.step_ms.size(), 3);
    EXPECT_EQ(run.profile_ms.size(), run.timed->plan().steps.size());
    EXPECT_GT(facts[v].time.median_ms, 0);
    EXPECT_GT(facts[v].costs.total.measured_us, 0);
    EXPECT_TRUE(run.differences.empty());
  }
  EXPECT_EQ(facts[0].time.ratio, 1);
  EXPECT_GT(facts[0].counts.at("kernels"), 3 * facts[1].counts.at("kernels"));
  EXPECT_GT(facts[0].counts.at("bytes_moved"),
            facts[1].counts.at("bytes_moved"));
  // 10 BN-ReLU, and 9 with an addition, of which 2 have two normalisations.
  int64_t made = 0;
  for (const RewriteCount& rewrite : facts[1].made) {
    if (rewrite.pass == "fuse_norm_activation") made += rewrite.count;
  }
  EXPECT_EQ(made, 19);
  EXPECT_FALSE(facts[1].rejected.empty());
  for (const RewriteCount& rewrite : facts[1].rejected) {
    EXPECT_FALSE(rewrite.reason.empty());
    EXPECT_FALSE(rewrite.places.empty());
  }
}

TEST(Compare, TextJsonAndPageAgree) {
  const Comparison comparison =
      CompareFusion(*Cifar(), SyntheticInputs(kCifar), true,
                    {.warmup = 0, .rounds = 2, .profiles = 1});
  const auto facts = MetricsOf(comparison);
  const std::string text = ComparisonText(comparison, facts, 5);
  const std::string identity =
      "bit-identical: loss, 172 state outputs, 65 gradients, ";
  EXPECT_THAT(text, HasSubstr(identity));
  const json out = ComparisonJson(comparison, facts);
  EXPECT_EQ(out["comparisons"][0]["numbers"]["bit_identical"], true);
  EXPECT_EQ(out["comparisons"][0]["numbers"]["summary"]["gradient"]["values"],
            65);
  const std::string page = ComparisonPage(comparison, facts, "subject");
  EXPECT_NE(page.find(identity), std::string::npos);
  for (const char* reference : {"http:", "https:", "src=", "href=", "url("}) {
    EXPECT_EQ(page.find(reference), std::string::npos) << reference;
  }
}

TEST(Compare, JsonHasStableKeys) {
  const Comparison comparison =
      CompareFusion(*Cifar(), SyntheticInputs(kCifar), false,
                    {.warmup = 0, .rounds = 1, .profiles = 1});
  const json out = ComparisonJson(comparison, MetricsOf(comparison));
  const auto keys = [](const json& object) {
    std::string text;
    for (const auto& [key, value] : object.items()) text += key + " ";
    return text;
  };
  EXPECT_EQ(keys(out), "comparisons ranks variants ");
  EXPECT_EQ(
      keys(out["variants"][0]),
      "bytes_moved communication compile_seconds counters distinct_kernels "
      "flops fusions gradient_buckets kernel_kinds kernels library_calls "
      "loss name nodes op_classes patterns planned_lower_bound_bytes "
      "planned_peak_bytes rejected state_bytes step_ms total "
      "traffic_bytes ");
  EXPECT_EQ(keys(out["variants"][0]["step_ms"]),
            "max median min quartiles rounds ");
  EXPECT_EQ(keys(out["variants"][0]["total"]),
            "bytes flops measured_us modelled_us share_of_limit steps ");
  EXPECT_EQ(keys(out["comparisons"][0]),
            "first numbers second speed_ratio speed_ratio_quartiles ");
  EXPECT_EQ(keys(out["comparisons"][0]["numbers"]),
            "bit_identical different_on_ranks summary unedited unmatched_calls "
            "unmatched_outputs values ");
  EXPECT_EQ(keys(out["comparisons"][0]["numbers"]["values"][0]),
            "differing elements first kind max_abs max_relative max_ulp name "
            "relative second worst_index ");
}

TEST(Compare, ComparesMatchingCallsOfWinogradAndDirect) {
  if (ir::DefaultCpuTarget().winograd_efficiency == 0) {
    GTEST_SKIP() << "oneDNN has Winograd for AVX-512 alone";
  }
  // With this batch size, Winograd's workspace pays.
  const models::ModelOptions options = {
      .batch = 64, .image_size = 32, .num_classes = 10};
  const auto model =
      models::BuildModel("resnet20-cifar", models::Phase::kTrain, options)
          .graph;
  std::vector<Variant> variants{MakeVariant("direct", true, false),
                                MakeVariant("winograd", true, false)};
  variants[0].compile.passes.winograd = false;
  const Comparison comparison =
      Compare(*model, variants, SyntheticInputs(options), kNumbersOnly);
  const VariantRun& run = comparison.variants[1];
  EXPECT_EQ(run.unmatched_calls, 0);
  bool differs = false;
  for (const ValueDifference& value : run.differences) {
    differs |= !value.difference.bit_identical();
    EXPECT_LT(value.difference.relative, kAmplifiedRounding) << value.name;
  }
  EXPECT_TRUE(differs);
}

// Gradients are scaled by a power of two until the update.
TEST(Compare, IgnoresTheLossScale) {
  std::vector<Variant> variants(3, MakeVariant("plain", true, false));
  variants[1].name = "static";
  variants[1].compile.passes.loss_scale.initial = 1024;
  variants[2].name = "dynamic";
  variants[2].compile.passes.loss_scale = {.initial = 65536, .dynamic = true};
  const Comparison comparison =
      Compare(*Cifar(), variants, SyntheticInputs(kCifar), kNumbersOnly);
  for (size_t v : {1, 2}) {
    const VariantRun& run = comparison.variants[v];
    EXPECT_GE(CountOf(run, ValueKind::kIntermediate), 50);
    for (const ValueDifference& value : run.differences) {
      EXPECT_LT(value.difference.relative, 1e-3)
          << run.name << " " << ValueKindName(value.kind) << " " << value.name;
    }
  }
}

TEST(Compare, TilesShowEveryVariant) {
  std::vector<Variant> variants{MakeVariant("off", false, false),
                                MakeVariant("on", true, false),
                                MakeVariant("again", false, false)};
  const Comparison comparison =
      Compare(*Cifar(), variants, SyntheticInputs(kCifar),
              {.warmup = 0, .rounds = 1, .profiles = 1});
  const std::string page =
      ComparisonPage(comparison, MetricsOf(comparison), "subject");
  EXPECT_THAT(page, ::testing::ContainsRegex(
                        "\"value\":\"[^\"]* 0[.][0-9]+, [^\"]* 1[.]00\","
                        "\"what\":\"kernels per step\""));
  EXPECT_THAT(page, ::testing::ContainsRegex(
                        "\"value\":\"[^\"]+, [^\"]+\",\"what\":\"speed\""));
}

TEST(Compare, NamesTheVariantThatFails) {
  const auto model = Cifar();
  std::vector<Variant> variants{MakeVariant("off", false, false),
                                MakeVariant("on", true, false)};
  variants[1].compile.memory_limit_bytes = 1;
  try {
    Compare(*model, variants, SyntheticInputs(kCifar), kNumbersOnly);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.what(), HasSubstr("variant on: "));
  }
  variants.pop_back();
  EXPECT_THROW(Compare(*model, variants, SyntheticInputs(kCifar), kNumbersOnly),
               Error);
}

}  // namespace
}  // namespace fusor::inspect
