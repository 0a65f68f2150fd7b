#include "passes/precision/conv_precision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/model.h"
#include "passes/pipeline.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/modelled_library.h"

namespace fusor::passes {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Three 3x3 convolutions in a row, then one without Winograd.
constexpr char kChain[] = R"(graph g {
    %x = data : f32[1,16,8,8]
    %w = weight : f32[16,16,1,1]
    %v = weight : f32[16,16,3,3]
    %u = weight : f32[32,16,3,3]
    %a = conv2d(%x, %w) : f32[1,16,8,8] @"a"
    %ar = relu(%a) : f32[1,16,8,8] @"ar"
    %b = conv2d(%ar, %v) {pad=[1,1]} : f32[1,16,8,8] @"b"
    %br = relu(%b) : f32[1,16,8,8] @"br"
    %c = conv2d(%br, %u) {pad=[1,1]} : f32[1,32,8,8] @"c"
    return %c as "c"
  })";

constexpr char kB[] =
    "conv2d x=1x16x8x8 w=16x16x3x3 stride=1,1 pad=1,1 dilation=1,1 groups=1";
constexpr char kC[] =
    "conv2d x=1x16x8x8 w=32x16x3x3 stride=1,1 pad=1,1 dilation=1,1 groups=1";

class WideConvolutionsTest : public testing::Test {
 protected:
  WideConvolutionsTest() {
    options_.precision.dtype = ir::DType::kBF16;
    rule_ = ModelledRule(context_);
    rule_.margin = 1;
    rule_.ns_per_byte = 0;
  }
  // Convolutions take 100 ns in 16 bits. In f32 they take the given time, or
  // 1000 ns.
  void Wide(std::map<std::string, double> ns) {
    rule_.times = [ns](const ir::Node& node) {
      const auto it = ns.find(ir::LibraryProblem(node));
      return PrecisionTimes{it == ns.end() ? 1000 : it->second, 100};
    };
  }
  std::set<std::string> Run() const { return FasterInF32(*graph_, rule_); }

  std::unique_ptr<ir::Graph> graph_ = test::ParseOrDie(kChain);
  test::ModelledLibrary library_{ir::FindTarget("cpu-avx512")};
  PassOptions options_;
  PassContext context_{library_, options_};
  WideRule rule_;
};

TEST_F(WideConvolutionsTest, TakesWhatIsFasterByTheMargin) {
  Wide({{kB, 90}, {kC, 50}});
  EXPECT_THAT(Run(), ElementsAre(kB, kC));
  rule_.margin = 0.8;
  EXPECT_THAT(Run(), ElementsAre(kC));
}

// The operand and the result have 1024 elements each. A cast moves 6 bytes per
// element.
TEST_F(WideConvolutionsTest, CountsCastsAtBordersOnly) {
  rule_.ns_per_byte = 10.0 / (6 * 1024);
  Wide({{kB, 85}});
  EXPECT_THAT(Run(), IsEmpty());  // casts: 10 before, 10 after
  Wide({{kB, 75}});
  EXPECT_THAT(Run(), ElementsAre(kB));
  Wide({{kB, 85}, {kC, 85}});  // no cast between the two
  EXPECT_THAT(Run(), ElementsAre(kB, kC));
}

// A 16-bit convolution between f32 ones would need casts.
TEST_F(WideConvolutionsTest, NeighboursInF32DrawOneWith) {
  rule_.ns_per_byte = 20.0 / (6 * 1024);
  Wide({{kB, 50}, {kC, 105}});
  EXPECT_THAT(Run(), ElementsAre(kB, kC));
}

TEST_F(WideConvolutionsTest, GivenProblemsAreNotWeighed) {
  Wide({{kB, 50}});
  rule_.given = {{kB, false}, {kC, true}};
  EXPECT_THAT(Run(), ElementsAre(kC));
}

// A library with convolutions in some dtypes. Records the queries.
class NotingLibrary final : public ir::TargetQueries {
 public:
  NotingLibrary(const std::string& target, std::set<ir::DType> has)
      : library_(ir::FindTarget(target)), has_(std::move(has)) {}
  const ir::Target& target() const override { return library_.target(); }
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    const ir::DType dtype = node.input(0)->type().dtype;
    asked.insert(dtype);
    return has_.contains(dtype) ? library_.Candidates(node)
                                : std::vector<ir::LibraryCandidate>();
  }
  mutable std::set<ir::DType> asked;

 private:
  test::ModelledLibrary library_;
  const std::set<ir::DType> has_;
};

std::set<std::string> WideWith(const NotingLibrary& library) {
  PassOptions options;
  options.precision.dtype = ir::DType::kF16;
  PassContext context(library, options);
  return FasterInF32(*test::ParseOrDie(R"(graph g {
      %x = data : f32[64,64,56,56]
      %w = weight : f32[64,64,3,3]
      %y = conv2d(%x, %w) {pad=[1,1]} : f32[64,64,56,56]
      return %y as "y"
    })"),
                     ModelledRule(context));
}

TEST(WideConvolutionsOnGpus, AreThoseThatTheLibraryLacksIn16Bit) {
  const NotingLibrary both("nvidia-h200", {ir::DType::kF16, ir::DType::kF32});
  EXPECT_THAT(WideWith(both), IsEmpty());
  EXPECT_THAT(both.asked, ElementsAre(ir::DType::kF16));
  const NotingLibrary wide("nvidia-h200", {ir::DType::kF32});
  EXPECT_EQ(WideWith(wide).size(), 1u);
}

// --- The built-in rule on models ---------------------------------------------

// Returns the locations of convolutions that stay in f32, with their number.
std::map<std::string, int> InF32(const std::string& arch, int64_t batch,
                                 const ir::Target& target,
                                 PassOptions options = {},
                                 std::set<ir::DType> winograd = {
                                     ir::DType::kF32}) {
  const test::ModelledLibrary library(target, std::move(winograd));
  options.precision.dtype = ir::DType::kBF16;
  PassContext context(library, options);
  const auto graph = std::move(
      models::BuildModel(arch, models::Phase::kTrain, {.batch = batch}).graph);
  for (Stage stage : {Stage::kForward, Stage::kTraining}) {
    RunPipeline(*graph, context, stage);
  }
  EXPECT_TRUE(MixedPrecision(*graph, context));
  std::map<std::string, int> wide;
  for (const auto& node : graph->nodes()) {
    const auto conv = ir::ConvolutionOf(*node);
    if (conv.has_value() && conv->x.dtype == ir::DType::kF32) {
      ++wide[node->location().path];
    }
  }
  return wide;
}

// Only f32 has Winograd here: forward and both gradients, from 256 channels at
// 56x56 to 512 at 28x28.
const std::map<std::string, int> kVgg = {
    {"features.10", 3}, {"features.12", 3}, {"features.14", 3},
    {"features.17", 3}, {"features.19", 3}, {"features.21", 3}};

TEST(WideConvolutionsGolden, Vgg16OnCpus) {
  const ir::Target avx512 = ir::FindTarget("cpu-avx512");
  for (int64_t batch : {8, 16, 32}) {
    EXPECT_EQ(InF32("vgg16", batch, avx512), kVgg) << "batch " << batch;
  }
  PassOptions direct;
  direct.winograd = false;
  EXPECT_THAT(InF32("vgg16", 16, avx512, direct), IsEmpty());
  for (int64_t batch : {8, 16, 32}) {
    EXPECT_THAT(
        InF32("vgg16", batch, avx512, {}, {ir::DType::kF32, ir::DType::kBF16}),
        IsEmpty())
        << "batch " << batch;
  }
}

TEST(WideConvolutionsGolden, ResNet50OnCpus) {
  for (int64_t batch : {8, 16, 32, 64}) {
    EXPECT_THAT(InF32("resnet50", batch, ir::FindTarget("cpu-avx512")),
                IsEmpty())
        << "batch " << batch;
  }
}

TEST(WideConvolutionsGolden, NoneWithoutWinogradOr16BitProducts) {
  EXPECT_THAT(InF32("vgg16", 16, ir::FindTarget("nvidia-h200")), IsEmpty());
  ir::Target no_products = ir::FindTarget("cpu-avx512");
  no_products.bf16_matmul = false;
  // All of them compute in f32 on rounded values, so there is no choice.
  PassOptions options;
  const test::ModelledLibrary library(no_products);
  options.precision.dtype = ir::DType::kBF16;
  PassContext context(library, options);
  const auto graph = test::ParseOrDie(kChain);
  EXPECT_TRUE(MixedPrecision(*graph, context));
  EXPECT_EQ(context.counters()["allowed_f32"], 0);
}

}  // namespace
}  // namespace fusor::passes
